"""What JAX's arrays are given when it is loaded, whichever name of `replicax.tf` loads it."""

from __future__ import annotations

import importlib
import sys


def prepare_arrays() -> None:
    """Give arrays `.numpy()`, if JAX is loaded; it is not loaded for that."""
    if "jax" in sys.modules:
        importlib.import_module("replicax.tf._tensors")
