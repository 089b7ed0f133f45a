"""Convolutions by the kernel, in tests that run them."""

from __future__ import annotations

import jax
import pytest

from replicax._core import cpu_tuning
from replicax._core.convolutions import rule
from replicax._cpu.kernels import are_there


@pytest.fixture
def kernel():
    """The rule is in, and nothing of before is compiled; afterwards JAX has its own again."""
    if not are_there():
        # Only where there is no C compiler: test_wheel.py fails if there is one and no kernels.
        pytest.skip("the kernels are not built")
    before = cpu_tuning.parts_on()
    cpu_tuning.choose_parts(frozenset({"convolutions"}))
    rule.install()
    jax.clear_caches()
    yield
    cpu_tuning.choose_parts(before)
    jax.clear_caches()
