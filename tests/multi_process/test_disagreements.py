"""Workers that are about to compute different things are stopped, each with the same table."""

import pytest

import replicax as rx

from . import disagreements

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def workers():
    return rx.launch.run(disagreements.in_worker, 2, devices_per_worker=1, timeout=450)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("wiring", ["variable 0", "variable 1"]),
        ("key", ["operation 1", "constant"]),
        ("argument", ["arguments of `run`", "float32[]"]),
        ("later_argument", ["arguments of `run`", "float32[]"]),
        ("weights", ["value of sequential/dense/kernel", "value of sequential/dense/bias"]),
        ("number_of_batches", ["number of batches", "worker 0 (", ": 1", ": 2"]),
        ("later_batch", ["divided by DATA", "batch (its checksum)"]),
        ("rows_of_arrays", ["same batches", "checksum "]),
        ("shapes_of_arrays", ["same batches", "float32[8, 2]", "float32[8, 3]"]),
        ("kind_of_batches", ["kind of batches", "float32[None, 2]", "float32[None, 3]"]),
        ("kind_of_values", ["kind of values", "float32[None, 2]", "float32[None, 3]"]),
    ],
)
def test_both_are_told_what_differs(workers, case, words):
    for found in workers:
        assert [word for word in words if word not in found[case]] == []
    assert workers[0][case] == workers[1][case]


def test_pieces_in_host_memory_are_combined_over_workers(workers):
    for found in workers:
        assert found["on host"] == (28.0, list(range(8)))
