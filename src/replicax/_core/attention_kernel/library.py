"""The kernel: kernel.c, compiled for this machine's cores when the first attention is traced.

Without a compiler nothing is said, and attention is computed by operations of JAX.
"""

from __future__ import annotations

import functools
import logging
import platform
from pathlib import Path

from replicax._core.handlers.building import NoHandlerError, compiler, load

FORWARD, GRADIENT = "rx_attention", "rx_attention_gradient"
_SOURCE = Path(__file__).with_name("kernel.c")
_ROWS = Path(__file__).with_name("rows.h")
_FLAGS = ("-march=native", "-fno-math-errno")

_log = logging.getLogger("replicax")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `FORWARD` and `GRADIENT`."""
    if compiler() is None or platform.system() != "Linux":
        return False
    try:
        made_of = [_ROWS.read_text()]
        load("attention", _SOURCE, *_FLAGS, targets=(FORWARD, GRADIENT), made_of=made_of)
    except NoHandlerError as why:
        _log.info("Attention is without its kernel: %s", why)
        return False
    return True
