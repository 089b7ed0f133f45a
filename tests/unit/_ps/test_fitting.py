"""Who waits for what `fit` and loops have scheduled, before variables are read."""

from types import SimpleNamespace

import pytest

from replicax._ps.steps import Flushes

from lane_fakes import in_thread


def test_what_several_models_have_under_way_is_waited_for_by_who_scheduled_it():
    store, called = SimpleNamespace(), []
    flushes = Flushes(store)
    first, second = (lambda: called.append("first")), (lambda: called.append("second"))
    for flush in (first, second, first):
        flushes.add(flush)
    store.before_access()
    assert called == ["first", "second"]
    in_thread(store.before_access).result()  # a lane: it would wait for itself
    assert called == ["first", "second"]
    flushes.remove(first)
    store.before_access()
    assert called == ["first", "second", "second"]


@pytest.mark.parametrize("loops", [1, 2, 3])
def test_a_read_waits_for_every_loop_of_its_thread(loops):
    store, waited = SimpleNamespace(), []
    flushes = Flushes(store)

    def loop(number):
        def flush():  # as `ClosureSteps` does: it takes itself out before it waits
            flushes.remove(flush)
            waited.append(number)

        return flush

    for number in range(loops):
        flushes.add(loop(number))
    for _ in range(2):
        store.before_access()
        assert sorted(waited) == list(range(loops))
