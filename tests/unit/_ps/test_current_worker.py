"""Which worker the code runs for; elsewhere there is none."""

import pytest

from replicax._core.tracing import with_around
from replicax._ps.data.per_worker import experimental_get_current_worker_index as current

from lane_fakes import in_thread


def test_code_on_a_worker_knows_its_number():
    with with_around(worker=3):
        assert current() == 3
        with with_around(worker=0):
            assert current() == 0
        assert current() == 3


def test_each_thread_has_its_own():
    with with_around(worker=3):
        inside = in_thread(current)
        with pytest.raises(RuntimeError, match="scheduled function"):
            inside.result()


def test_the_program_of_the_coordinator_is_no_worker():
    with with_around(worker=1):
        pass
    with pytest.raises(ValueError, match="scheduled function"):
        current()
