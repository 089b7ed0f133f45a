"""A component for each worker, and an error for a worker that has none."""

import pytest

from replicax._core.errors import UsageError
from replicax._ps.data.per_worker import PerWorkerValues


def test_each_worker_has_its_component():
    values = PerWorkerValues(iter("ab"))
    assert values.values == ("a", "b")
    assert [values.of_worker(0), values.of_worker(1)] == ["a", "b"]
    assert repr(values) == "PerWorkerValues(['a', 'b'])"


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_without_a_component_is_an_error(worker):
    with pytest.raises(UsageError, match=rf"worker {worker}, .* 2"):
        PerWorkerValues([1, 2]).of_worker(worker)
