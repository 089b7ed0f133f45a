"""Loops that schedule their steps: who waits for them before a variable is read."""

from __future__ import annotations

import types

import pytest

from replicax._ps.steps import Flushes


@pytest.mark.parametrize("loops", [1, 2, 3])
def test_a_read_waits_for_every_loop_of_its_thread(loops):
    store = types.SimpleNamespace()
    flushes = Flushes(store)
    waited = []

    def loop(number):
        def flush():  # as `ClosureSteps` does: it takes itself out before it waits
            flushes.remove(flush)
            waited.append(number)

        return flush

    for number in range(loops):
        flushes.add(loop(number))
    store.before_access()
    assert sorted(waited) == list(range(loops))
    store.before_access()
    assert len(waited) == loops
