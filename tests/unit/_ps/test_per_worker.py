"""A component for each worker, and which worker the code runs for; elsewhere there is none."""

import pytest

from replicax._core.errors import UsageError
from replicax._core.tracing import with_around
from replicax._ps.data.per_worker import PerWorkerValues
from replicax._ps.data.per_worker import experimental_get_current_worker_index as current

from lane_fakes import in_thread


def test_each_worker_has_its_component():
    values = PerWorkerValues(iter("ab"))
    assert values.values == ("a", "b")
    assert [values.of_worker(0), values.of_worker(1)] == ["a", "b"]
    assert repr(values) == "PerWorkerValues(['a', 'b'])"


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_without_a_component_is_an_error(worker):
    with pytest.raises(UsageError, match=rf"worker {worker}, .* 2"):
        PerWorkerValues([1, 2]).of_worker(worker)


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
