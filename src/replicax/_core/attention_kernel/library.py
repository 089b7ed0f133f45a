"""The kernel: kernel.c, compiled for this machine's cores when the first attention is traced.

Without a compiler nothing is said, and attention is computed by operations of JAX.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers import building

FORWARD, GRADIENT = "rx_attention", "rx_attention_gradient"
_SOURCE = Path(__file__).with_name("kernel.c")
_ROWS = Path(__file__).with_name("rows.h")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `FORWARD` and `GRADIENT`."""
    how = {"targets": (FORWARD, GRADIENT), "made_of": [_ROWS.read_text()]}
    return building.is_known("Attention is without its kernel", "attention", _SOURCE, **how)
