"""The kernels in C that most training on CPUs needs: compiled beside the program, from its start.

Else the first program that asks for one waits for the compiler. The strategies import this before
Keras, whose import leaves a core to it. Not the one of attention: it takes so long to compile that
programs without attention would begin later.
"""

from __future__ import annotations

import functools
from contextlib import suppress

import jax as jax  # first: a worker joins its cluster then, and imports some of what follows

from replicax._core.adam_kernel import library as adam
from replicax._core.cpu_tuning import is_on
from replicax._core.errors import UsageError
from replicax._core.host_devices import count_accelerators
from replicax._core.row_products import rule as row_products
from replicax._core.table_kernel import library as tables

_KERNELS = {"optimizers": adam, "products": row_products, "tables": tables}


@functools.cache
def begin() -> None:
    """Begin with those that are not kept yet, if programs run on CPUs alone."""
    if any(map(count_accelerators, ("GPU", "TPU"))):
        return
    with suppress(UsageError):  # of a part that there is not: said when a program is compiled
        for part, kernel in _KERNELS.items():
            if is_on(part):
                kernel.begin()


begin()
