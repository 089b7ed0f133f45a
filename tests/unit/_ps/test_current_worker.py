"""Which worker the code runs for; elsewhere there is none."""

from __future__ import annotations

import pytest

from replicax._ps.data.per_worker import experimental_get_current_worker_index as current
from replicax._ps.data.worker_data import on_worker

from lane_fakes import in_thread


def test_code_on_a_worker_knows_its_number():
    with on_worker(3):
        assert current() == 3
        with on_worker(0):
            assert current() == 0
        assert current() == 3


def test_each_thread_has_its_own():
    with on_worker(3):
        inside = in_thread(current)
        with pytest.raises(RuntimeError, match="scheduled function"):
            inside.result()


def test_the_program_of_the_coordinator_is_no_worker():
    with on_worker(1):
        pass
    with pytest.raises(ValueError, match="scheduled function"):
        current()
