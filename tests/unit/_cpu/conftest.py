"""Convolutions by the kernel, in tests that run them."""

import jax
import pytest

from replicax._cpu.kernels import are_there
from replicax._cpu.tuning import choose


@pytest.fixture
def kernel():
    """Convolutions alone are tuned, and nothing of before is compiled."""
    if not are_there():
        # Only where there is no C compiler: test_wheel.py fails if there is one and no kernels.
        pytest.skip("the kernels are not built")
    with choose({"convolutions"}):
        jax.clear_caches()
        yield
    jax.clear_caches()
