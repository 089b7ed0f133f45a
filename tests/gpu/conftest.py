"""Checks on a GPU. Where there is none the CPU stands for it, which shows that the checks run."""

from __future__ import annotations

import jax
import pytest

GPUS = [device for device in jax.local_devices() if device.platform == "gpu"]
DEVICE = "GPU:0" if GPUS else "CPU:1"

needs_gpu = pytest.mark.skipif(not GPUS, reason="needs a GPU")


@pytest.fixture(autouse=True)
def _full_float32():
    """Products and convolutions of `float32` keep all of its digits, not those of TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def gpu():
    """The first GPU."""
    if not GPUS:
        pytest.skip("needs a GPU")
    return GPUS[0]
