"""Workers of which one has no C compiler train all the same, and none uses kernels."""

from __future__ import annotations

import numpy as np
import pytest

import replicax as rx

from . import compilers
from helpers import LEAN

pytestmark = pytest.mark.timeout(300)


def train(without):
    return rx.launch.run(
        compilers.in_worker, 2, args=(without,), devices_per_worker=1, timeout=250, env=LEAN
    )


def test_all_go_without_what_one_cannot_compile():
    (chief, said), (other, silence) = train([1])
    assert len(said) == 1
    assert "worker 1" in said[0]
    assert silence == []
    neither = train([0, 1])
    assert [texts for _, texts in neither] == [[], []]
    for ours, theirs in zip(chief, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    for ours, theirs in zip(chief, neither[0][0], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
