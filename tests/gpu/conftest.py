"""Checks on a GPU. Where there is none the CPU stands for it, which shows that the checks run."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _full_float32():
    """Products and convolutions of `float32` keep all of its digits, not those of TF32."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def gpu():
    """The first GPU."""
    try:
        return jax.local_devices(backend="gpu")[0]
    except RuntimeError:
        pytest.skip("needs a GPU")
