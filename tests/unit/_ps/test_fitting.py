"""Who waits for what `fit` has scheduled, before variables are read."""

from __future__ import annotations

from types import SimpleNamespace

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
