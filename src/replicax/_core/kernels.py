"""The kernels in C that any training on CPUs may need: compiled beside the program, from its start.

Else the first program that asks for one waits for the compiler. The strategies import this before
Keras, whose import takes half a second of one core.
"""

from __future__ import annotations

import functools

from replicax._core.adam_kernel import library as adam
from replicax._core.attention_kernel import library as attention
from replicax._core.cpu_tuning import is_on
from replicax._core.host_devices import count_accelerators
from replicax._core.row_products import rule as row_products

_KERNELS = {"optimizers": adam, "products": row_products, "attention": attention}


@functools.cache
def begin() -> None:
    """Begin with those that are not kept yet, if programs run on CPUs alone."""
    if not any(map(count_accelerators, ("GPU", "TPU"))):
        for part, kernel in _KERNELS.items():
            if is_on(part):
                kernel.begin()


begin()
