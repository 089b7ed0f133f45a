"""How running code comes by data: what is set in turn holds together, and in one thread only."""

from __future__ import annotations

import threading

import pytest

from replicax._core.tracing import (
    call_inside,
    current_reader,
    host_loop,
    is_host_loop,
    is_inside,
    known_before,
    may_read,
    read_by,
)


def here():
    return current_reader(), is_host_loop(), is_inside(), may_read()


def test_outside_of_all_data_is_read_as_it_comes():
    assert here() == (None, False, False, True)


def test_a_function_of_a_pipeline_may_run_in_a_host_loop_and_be_traced():
    reader = object()
    with host_loop():
        assert call_inside(here) == (None, True, True, True)
        with read_by(reader):
            assert here() == (reader, False, False, True)
            assert call_inside(here) == (reader, False, True, True)
        with known_before():
            assert here() == (None, True, False, False)
        assert here() == (None, True, False, True)
    assert here() == (None, False, False, True)


def test_a_function_that_raises_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError):
        call_inside(lambda: 1 // 0)
    assert here() == (None, False, False, True)


def test_other_threads_do_not_hear_of_it():
    found = []
    with host_loop(), known_before():
        thread = threading.Thread(target=lambda: found.append(call_inside(here)))
        thread.start()
        thread.join()
    assert found == [(None, False, True, True)]
