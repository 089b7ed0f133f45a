"""Real processes on loopback give what one device, or as many replicas in one process, give."""

import jax
import numpy as np
import pytest

import replicax as rx

from . import scenarios
from helpers import assert_trees_close

pytestmark = pytest.mark.timeout(600)

LINES = {"a": (0, 5), "b": (100, 3), "c": (200, 9), "d": (300, 2)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lines")
    for name, (first, count) in LINES.items():
        text = "\n".join(str(first + number) for number in range(count))
        (folder / f"{name}.txt").write_text(text + "\n")
    return str(folder)


def run(workers, devices, call):
    return rx.launch.run(
        scenarios.in_worker, workers, devices_per_worker=devices, args=call, timeout=550
    )


@pytest.fixture(scope="module")
def workers(folder):
    """What two workers with two devices each have found."""
    call = (folder, [scenario.__name__ for scenario in scenarios.SCENARIOS])
    return run(2, 2, call)


@pytest.mark.core
def test_three_workers_give_what_one_process_gives(folder):
    fitted = scenarios.fit_arrays(None)
    looped = scenarios.custom_loop(rx.MirroredStrategy(jax.devices()[:3]))
    for found in run(3, 1, (folder, ["fit_arrays", "custom_loop"])):
        assert found["workers"] == (3, 3)
        assert_trees_close(found["fit_arrays"], fitted, rtol=2e-5, atol=2e-6)
        assert_trees_close(found["custom_loop"], looped)


@pytest.fixture
def four_replicas():
    return rx.MirroredStrategy([f"CPU:{number}" for number in range(4)])


@pytest.mark.parametrize("name", ["fit_dataset", "fit_distributed", "variants"])
def test_fit_gives_what_one_device_gives(workers, name):
    expected = getattr(scenarios, name)(None)
    for found in workers:
        assert_trees_close(found[name], expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", ["custom_loop", "variables"])
def test_a_custom_loop_gives_what_four_replicas_in_one_process_give(workers, four_replicas, name):
    expected = getattr(scenarios, name)(four_replicas)
    for found in workers:
        assert_trees_close(found[name], expected)


def test_workers_compile_a_function_together_before_its_first_batch(workers):
    for found in workers:
        assert found["warmed_up"] == {"said": True, "sums": [45.0, 145.0], "n": 1}


def test_compressed_gradients_leave_all_workers_with_the_same_weights(workers):
    first, second = (found["compressed"] for found in workers)
    assert_trees_close(first, second, rtol=0, atol=0)  # bit for bit
    # From a checkpoint, with what was left over on both workers.
    assert_trees_close(first["went on"], first["went on again"], rtol=0, atol=0)
    plain = workers[0]["custom_loop"]
    assert first["loop"]["losses"] == pytest.approx(plain["losses"], rel=0.1)
    assert first["loop"]["losses"][0] == pytest.approx(plain["losses"][0])
    assert first["history"]["loss"][1] < first["history"]["loss"][0]


def test_every_worker_knows_the_cluster(workers):
    assert [found["workers"] for found in workers] == [(2, 4), (2, 4)]
    assert [found["checkpoints"] for found in workers] == [(True, True), (False, False)]


@pytest.mark.parametrize(("kind", "rows"), [("even", 12), ("uneven", 10)])
def test_collectives_see_the_rows_of_all_workers(workers, kind, rows):
    numbers = np.arange(float(rows))
    for worker, found in enumerate(workers):
        of = found["collectives"][kind]
        assert of["total"] == numbers.sum()
        assert of["doubled"].tolist() == (2 * numbers).tolist()
        assert of["gathered"].tolist() == numbers.tolist()
        assert of["mean"] == pytest.approx((2 * numbers).mean())
        # ⌈12 / 4⌉ = ⌈10 / 4⌉ = 3 rows per replica, until they run out.
        parts = [numbers[3 * replica : 3 * replica + 3] * 2 for replica in range(4)]
        local = parts[2 * worker : 2 * worker + 2]
        assert [part.tolist() for part in of["local"]] == [part.tolist() for part in local]


def test_values_belong_to_the_replicas_of_a_worker(workers):
    for worker, found in enumerate(workers):
        of = found["collectives"]
        assert of["ids"] == [2 * worker, 2 * worker + 1]
        assert of["sum of values"] == 0 + 1 + 2 + 3
        assert of["of a function"] == ([part.tolist() for part in of["even"]["local"]], 2 * 66.0)
        assert of["on one device"] == 0 + 1 + 2 + 3
        assert of["of host"] == sum(range(10))
        assert f"{2 * worker}: " in of["repr"]
        assert f"{2 * (1 - worker)}: " not in of["repr"]


@pytest.mark.parametrize(("way", "culprit"), [("fit", 0), ("run", 1), ("function", 1)])
def test_python_that_raises_on_one_worker_ends_the_step_on_both(workers, way, culprit):
    # Both have two devices, of which one would wait for the other for ever.
    for worker, found in enumerate(workers):
        kind, text, lost, *went_on = found["python_raises"]["said"][way]
        assert (kind, lost) == (
            ("LookupError", ()) if worker == culprit else ("WorkerLost", (culprit,))
        )
        assert f"not today, says {culprit}" in text
        assert went_on == [True, True]  # the step changed nothing, and the next one did
    first, second = (found["python_raises"]["weights"] for found in workers)
    assert_trees_close(first, second, rtol=0, atol=0)


def test_the_chief_names_the_slow_worker(workers):
    chief, slow = (found["watched"] for found in workers)
    assert chief["history"]["slowest_worker"] == [1]
    # Seven steps of a few milliseconds, and 0.4 s of sleep behind each but the last.
    assert chief["history"]["slowest_factor"][0] > 1.2
    assert (chief["written"], slow["written"]) == (True, False)
    assert "slowest_worker" not in slow["history"]


def test_what_is_printed_names_worker_and_replica(workers):
    chief, other = (found["watched"]["said"] for found in workers)
    # What `fit` computes is of all: one worker prints it.
    assert chief == [
        ["[worker 0] rows 24"],
        ["[worker 0, replica 0] y 2", "[worker 0, replica 1] y 2", "[worker 0] x 1"],
    ]
    assert other == [
        [],
        ["[worker 1, replica 2] y 2", "[worker 1, replica 3] y 2", "[worker 1] x 1"],
    ]


def test_pipelines_of_unequal_length_end_together(workers):
    # Worker 0 makes 4 batches of one row, worker 1 makes 6 of two; two go to its replicas a step.
    expected = [[0, 2, 20, 20, 22, 22], [4, 6, 24, 24, 26, 26], [28, 28, 30, 30]]
    assert [found["own_pipelines"] for found in workers] == [expected, expected]


def test_workers_that_read_files_of_unequal_length_lose_no_row(workers):
    every = sorted(first + row for first, count in LINES.values() for row in range(count))
    for found in workers:
        assert sorted(row for batch in found["files"]["rows"] for row in batch) == every
        assert found["files"]["again"] == sum(every)
        assert found["files"]["policy"] == "FILE"


def test_workers_find_the_same_batch_size(workers):
    one, other = (found["batch_sizes"] for found in workers)
    assert one == other
    # A row has 192 numbers of 4 bytes, and temporaries of that order; each replica has 1 MB.
    assert 4 * 1_000_000 / (4 * 192) / 5 < one[0] < 4 * 1_000_000 / (4 * 192)
    assert one[0] % 4 == 0
    assert one[1] == 1000  # 1001 rows are not divided by four replicas


def test_one_run_is_tracked_and_one_file_of_events_is_written(workers):
    chief, other = (found["tracked"] for found in workers)
    assert [logs["loss"] for logs in chief["logged"]] == chief["losses"] == other["losses"]
    assert chief["events"] == 1
