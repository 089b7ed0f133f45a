"""Distributed data sets without devices: where the pieces go is handed in."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import replicax as rx
from replicax._input.distribute import distribute_dataset, distribute_from_function
from replicax.data._nodes.files import FileRecords


class Target:
    """Replicas that take what is put."""

    closures = None

    def __init__(self, replicas):
        self.topology = SimpleNamespace(num_replicas=replicas, num_processes=1, process_index=0)
        self.puts = 0

    def put(self, pieces, sizes=None):
        self.puts += 1
        self.sizes = sizes
        return [piece.tolist() for piece in pieces]


def options(**chosen):
    return rx.InputOptions(**{f"experimental_{name}": value for name, value in chosen.items()})


def test_an_empty_piece_has_the_structure_of_the_others():
    target = Target(2)
    target.put = lambda pieces: pieces
    (batch,) = distribute_from_function(
        lambda context: [{"x": np.ones((2, 3)), "y": None}], target, rx.InputOptions()
    )
    assert batch[0]["x"].shape == (2, 3)
    assert batch[1]["x"].shape == (0, 3)
    assert batch[1]["y"] is None


def test_a_data_set_cannot_be_distributed_twice():
    dataset = distribute_dataset([np.arange(2)], Target(2), rx.InputOptions())
    with pytest.raises(rx.errors.UsageError, match="distributed already"):
        distribute_dataset(dataset, Target(2), rx.InputOptions())


def test_a_pipeline_per_replica_is_made_by_a_function():
    chosen = options(replication_mode=rx.InputReplicationMode.PER_REPLICA)
    with pytest.raises(rx.errors.UsageError, match="InputReplicationMode.PER_REPLICA is only"):
        distribute_dataset([np.arange(2)], Target(2), chosen)


def test_an_empty_data_set_has_no_spec():
    dataset = distribute_dataset([], Target(2), rx.InputOptions())
    # Not StopIteration, which would silently end a generator around it.
    with pytest.raises(rx.errors.UsageError, match="data set is empty"):
        _ = dataset.element_spec


def test_folding_passes_the_state_on():
    dataset = distribute_dataset([np.arange(2)] * 3, Target(2), rx.InputOptions())
    assert dataset.reduce([], lambda state, batch: [*state, batch]) == [[[0], [1]]] * 3
    assert dataset.reduce("nothing", lambda state, batch: state) == "nothing"


def test_an_epoch_can_be_read_on_the_host():
    target = Target(2)
    dataset = distribute_dataset([np.arange(3), np.arange(2)], target, rx.InputOptions())
    for _ in range(2):
        assert [batch.tolist() for batch in dataset.host_batches()] == [[0, 1, 2], [0, 1]]
    assert (target.puts, dataset.num_batches) == (0, 2)


def test_how_many_batches_a_function_gives_is_not_known():
    dataset = distribute_from_function(
        lambda context: [np.arange(2)] * 3, Target(2), rx.InputOptions()
    )
    assert dataset.num_batches is None


class Worker(Target):
    """One of some workers of one replica, in a thread of its own, which all ask together."""

    closures = None

    def __init__(self, number, workers, meeting):
        super().__init__(workers)
        self.topology.num_processes = workers
        self.topology.process_index = number
        self._meeting, self._told = meeting

    def offer(self, name, value):
        return Mock(answers=lambda: self._exchange(value))

    def _exchange(self, value):
        self._told[self.topology.process_index] = value
        self._meeting.wait(60)
        found = [self._told[worker] for worker in range(self._meeting.parties)]
        self._meeting.wait(60)
        return found


def on_workers(count, distribute):
    """What each worker gets of the data set that `distribute(target)` makes, step by step."""
    meeting = threading.Barrier(count), {}
    with ThreadPoolExecutor(count) as pool:
        futures = [
            pool.submit(lambda n=n: list(distribute(Worker(n, count, meeting))))
            for n in range(count)
        ]
        return [future.result(60) for future in futures]


def test_workers_with_data_sets_of_their_own_end_in_step():
    def dataset_fn(context):
        return rx.data.Dataset.range(8 + context.input_pipeline_id).batch(2)

    first, second = on_workers(
        2, lambda target: distribute_from_function(dataset_fn, target, rx.InputOptions())
    )
    assert first == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[]]]  # 46
    assert second == [[[0, 1]], [[2, 3]], [[4, 5]], [[6, 7]], [[8]]]  # 46


def test_a_function_is_told_of_its_worker():
    contexts = []

    def dataset_fn(context):
        contexts.append(context)
        return [np.arange(2)]

    on_workers(2, lambda target: distribute_from_function(dataset_fn, target, rx.InputOptions()))
    by_pipeline = sorted(contexts, key=lambda context: context.input_pipeline_id)
    assert by_pipeline == [rx.InputContext(2, 0, 2), rx.InputContext(2, 1, 2)]  # 50


class Letters:
    """A file format: a file holds as many numbers as its name has letters."""

    def records(self, path, start):
        for position in range(start or 0, len(path)):
            yield np.float32(position), position + 1


@pytest.mark.parametrize("names", [("abcd", "x"), ("abcd", "")])
def test_workers_with_files_of_different_lengths_end_in_step(names):
    options = rx.data.Options()
    options.experimental_distribute.auto_shard_policy = rx.data.AutoShardPolicy.FILE
    dataset = rx.data.Dataset(FileRecords(names, Letters())).batch(4).with_options(options)
    first, second = on_workers(
        2, lambda target: distribute_dataset(dataset, target, rx.InputOptions())
    )
    assert first == [[[0.0, 1.0]], [[2.0, 3.0]]]
    # The second file has one row or none: its worker goes on without.
    assert second == [[[0.0]] if names[1] else [[]], [[]]]


def test_the_rows_of_all_replicas_are_told_if_they_differ():
    targets = []

    def distribute(target):
        targets.append(target)
        return distribute_dataset([np.arange(3)], target, rx.InputOptions())

    on_workers(2, distribute)
    assert [target.sizes for target in targets] == [[2, 1], [2, 1]]


def differing(*datasets):
    """What workers say that have other data sets, which they take for the same."""

    def distribute(target):
        dataset = datasets[target.topology.process_index]
        return distribute_dataset(dataset, target, rx.InputOptions())

    with pytest.raises(rx.errors.WorkersDiffer) as raised:
        on_workers(2, distribute)
    return str(raised.value)


def test_workers_that_share_data_must_hold_the_same_batches():
    text = differing([np.arange(4)], [np.arange(4) + 1])
    assert "must have the same data, as it is divided by DATA" in text
    assert "batch (its checksum)" in text


def test_workers_shuffle_by_the_chiefs_seed():
    def distribute(target):
        dataset = rx.data.Dataset.range(64).shuffle(64).batch(64)  # each draws a seed of its own
        return distribute_dataset(dataset, target, rx.InputOptions())

    ((first,), (second,)) = (
        [sum(step, []) for step in steps] for steps in on_workers(2, distribute)
    )
    assert sorted(first + second) == list(range(64))
    assert first + second != list(range(64))


def test_workers_must_take_equally_many_random_steps():
    text = differing(
        rx.data.Dataset.range(4).shuffle(4).batch(2), rx.data.Dataset.range(4).batch(2)
    )
    assert "number of random steps" in text


def test_a_pass_of_one_worker_alone_does_not_put_it_out_of_step():
    def distribute(target):
        dataset = rx.data.Dataset.range(64).shuffle(64, seed=1).batch(64)
        if target.topology.process_index == 0:
            list(dataset)
        return distribute_dataset(dataset, target, rx.InputOptions())

    ((first,), (second,)) = (
        [sum(step, []) for step in steps] for steps in on_workers(2, distribute)
    )
    assert sorted(first + second) == list(range(64))


def test_fit_reads_the_rows_of_a_worker_and_how_many_all_have():
    found = on_workers(
        2,
        lambda target: distribute_dataset(
            [np.arange(5), np.arange(2)], target, rx.InputOptions()
        ).host_batches(),
    )
    assert [[(b.rows.tolist(), b.counts) for b in worker] for worker in found] == [
        [([0, 1, 2], (3, 2)), ([0], (1, 1))],
        [([3, 4], (3, 2)), ([1], (1, 1))],
    ]


@pytest.mark.parametrize("policy", ["FILE", "DATA"])
def test_positions_of_all_workers_are_needed_for_another_number_of_them(policy):
    options = rx.data.Options()
    options.experimental_distribute.auto_shard_policy = rx.data.AutoShardPolicy[policy]
    dataset = rx.data.Dataset(FileRecords(("ab", "cd", "ef"), Letters())).batch(2)
    dataset = dataset.with_options(options)

    def distributed(number, workers):
        target = Worker(number, workers, (threading.Barrier(1), {}))
        target.offer = lambda name, value: Mock(answers=lambda: [value])
        return iter(distribute_dataset(dataset, target, rx.InputOptions()))

    before = [distributed(number, 3) for number in range(3)]
    states = [iterator.get_state() for iterator in before]
    after = distributed(0, 1)
    if policy == "FILE":
        with pytest.raises(rx.errors.UsageError, match="states of all workers"):
            after.set_state(states[0])
        after.set_state(states)
    else:
        after.set_state(states[0])
    assert sorted(row for step in after for piece in step for row in piece) == [0, 0, 0, 1, 1, 1]


def test_workers_go_on_from_a_position_of_the_data_set_that_they_share():
    def shuffled():
        return rx.data.Dataset.range(12).shuffle(12).batch(4)

    alone = iter(shuffled())
    taken = next(alone).tolist()
    state = alone.get_state()

    def distribute(target):
        iterator = iter(distribute_dataset(shuffled(), target, rx.InputOptions()))
        iterator.set_state(state)
        return iterator

    steps = [step for worker in on_workers(2, distribute) for step in worker]
    rows = [row for step in steps for piece in step for row in piece]
    assert sorted(rows + taken) == list(range(12))


def test_data_sets_of_replicas_made_from_one_resume_in_step_with_its_epochs():
    def distributed():
        rows = rx.data.Dataset.range(8).shuffle(8, seed=1)
        chosen = options(replication_mode=rx.InputReplicationMode.PER_REPLICA)
        return distribute_from_function(
            lambda context: rows.shard(2, context.input_pipeline_id).batch(2), Target(2), chosen
        )

    dataset = distributed()
    state = iter(dataset).get_state()
    again = distributed()
    iter(again).set_state(state)
    assert list(dataset) == list(again)  # the second epoch
