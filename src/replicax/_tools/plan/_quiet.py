"""Suppresses what libtpu leaves behind when it only compiles: warnings, and programs on disk."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Generator

import jax

_KEPT_FROM = "jax_persistent_cache_min_compile_time_secs"


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Drop the standard error in a `with` block, even that of native code.

    Without a TPU libtpu warns of what it would need to run programs.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as dropped:
            os.dup2(dropped.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def not_kept() -> Generator[None, None, None]:
    """Keep no program of a `with` block on disk: JAX cannot load it without a TPU, and warns."""
    before = getattr(jax.config, _KEPT_FROM)
    jax.config.update(_KEPT_FROM, float("inf"))
    try:
        yield
    finally:
        jax.config.update(_KEPT_FROM, before)
