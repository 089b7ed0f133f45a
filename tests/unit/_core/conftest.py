"""Convolutions by oneDNN, in tests that run them."""

from __future__ import annotations

import jax
import pytest

from replicax._core import cpu_tuning
from replicax._core.convolutions import rule
from replicax._core.convolutions.library import library


@pytest.fixture
def kernel(monkeypatch):
    """The rule is in, and nothing of before is compiled; afterwards JAX has its own again."""
    if library() is None:
        pytest.skip("oneDNN or a C compiler is not installed; `make test-slow` has both")
    monkeypatch.setattr(rule, "cores", lambda: 2)
    before = cpu_tuning.parts_on()
    cpu_tuning.choose_parts(frozenset({"convolutions"}))
    rule.install()
    jax.clear_caches()
    yield
    cpu_tuning.choose_parts(before)
    jax.clear_caches()
