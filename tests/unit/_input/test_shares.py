"""Who computes which rows: the arithmetic of several workers, without processes.

Numbers in comments are pairs of the semantics' list B; TensorFlow's files have 12 rows each.
"""

import jax
import numpy as np
import pytest

from replicax._input.sharing import PerReplicaSource, ShardedSource, WorkerBatch, cut, redistributed
from replicax.data import AutoShardPolicy, Dataset
from replicax.data._node import Feed
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.files import FileRecords
from replicax.data._nodes.sources import ArrayTable
from replicax.data.experimental import SHARD_HINT

AUTO, DATA, FILE = AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE
HINT, OFF = AutoShardPolicy.HINT, AutoShardPolicy.OFF


class Numbers:
    """A file format: the file "7" holds the numbers 700 to 711."""

    def records(self, path, start):
        for position in range(start or 0, 12):
            yield np.int64(100 * int(path) + position), position + 1


def files(*names):
    return Dataset(FileRecords(names, Numbers()))


def sharing(dataset, policy, workers=1, worker=0, replicas=1):
    return ShardedSource(dataset.prepared(), policy, workers, worker, replicas)


def rows(share):
    return [np.asarray(piece).tolist() for piece in share.pieces]


def steps(dataset, policy, workers=1, worker=0, replicas=1):
    """What each replica of one worker gets, step by step."""
    feed = Feed(sharing(dataset, policy, workers, worker, replicas), (0,))
    return [rows(share) for share in feed.elements(1000)]


def flat(dataset, policy, workers, worker):
    """The same for workers of one replica."""
    return [step[0] for step in steps(dataset, policy, workers, worker)]


def numbers(count):
    return Dataset.range(count)


@pytest.mark.parametrize(
    ("dataset", "policy", "replicas", "expected"),
    [
        (numbers(8).batch(3), DATA, 2, [[[0, 1], [2]], [[3, 4], [5]], [[6], [7]]]),  # 34
        (numbers(8).batch(3), OFF, 2, [[[0, 1], [2]], [[3, 4], [5]], [[6, 7], []]]),  # 34
        (numbers(14).batch(8, drop_remainder=True), OFF, 2, [[[0, 1, 2, 3], [4, 5, 6, 7]]]),
        (numbers(3).batch(3), DATA, 4, [[[0], [1], [2], []]]),
        (numbers(3).batch(3).map(lambda x: x), OFF, 4, [[[0], [1], [2], []]]),
    ],
)
def test_the_pieces_of_replicas(dataset, policy, replicas, expected):
    assert steps(dataset, policy, replicas=replicas) == expected


def test_a_batch_of_nests_is_cut_alike():
    share = cut({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, [2, 1])
    first, second = share.pieces
    assert (first["x"].tolist(), first["y"].tolist()) == ([[0, 1], [2, 3]], [0, 1])
    assert (second["x"].tolist(), second["y"].tolist()) == ([[4, 5]], [2])


def test_a_nest_without_arrays_has_nothing_to_cut():
    assert cut((None, {}), [0, 0, 0]).pieces == ((None, {}),) * 3


def test_an_empty_piece_keeps_the_other_axes():
    assert cut(np.ones((1, 4, 5)), [1, 0]).pieces[1].shape == (0, 4, 5)


def test_a_share_is_joined_again():
    share = cut(np.arange(5), [3, 2])
    assert share.batch().tolist() == [0, 1, 2, 3, 4]
    assert WorkerBatch(share.pieces).batch().tolist() == [0, 1, 2, 3, 4]
    assert [piece.shape for piece in share.without_rows().pieces] == [(0,), (0,)]


THIRDS = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
PAIRS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
HINTED = numbers(10).shard(SHARD_HINT, SHARD_HINT)


@pytest.mark.parametrize(
    ("dataset", "policy", "own", "other"),
    [
        (numbers(9).batch(2), DATA, [[0], [2], [4], [6], [8]], [[1], [3], [5], [7], []]),  # 38
        # Workers of a dropped remainder take as many steps.
        (numbers(9).batch(2, True), DATA, [[0], [2], [4], [6]], [[1], [3], [5], [7]]),  # 38
        (numbers(14).batch(8), DATA, [THIRDS[0], [8, 9, 10]], [THIRDS[1], [11, 12, 13]]),  # 40
        (numbers(12).batch(8), OFF, THIRDS, THIRDS),  # 41
        # Behind a map nobody knows the batch size: each is cut, and all pieces are read.
        (
            numbers(12).batch(8).map(lambda x: x),
            OFF,
            [*THIRDS[:2], [8, 9], [10, 11]],
            [*THIRDS[:2], [8, 9], [10, 11]],
        ),  # 41
        (numbers(10).batch(4), DATA, [[0, 1], [4, 5], [8]], [[2, 3], [6, 7], [9]]),  # 43
        (numbers(10).batch(4), OFF, PAIRS, PAIRS),  # 43
        (
            files("0", "1").batch(8),
            FILE,
            THIRDS,
            [[n + 100 for n in step] for step in THIRDS],
        ),  # 44
        (
            files("0", "1").batch(8),
            DATA,
            [[0, 1, 2, 3], [8, 9, 10, 11], [104, 105, 106, 107]],
            [[4, 5, 6, 7], [100, 101, 102, 103], [108, 109, 110, 111]],
        ),
        (HINTED.batch(4), HINT, [[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]),  # 47
    ],
)
def test_the_parts_of_two_workers(dataset, policy, own, other):
    assert [flat(dataset, policy, 2, worker) for worker in (0, 1)] == [own, other]


def test_of_rows_in_memory_a_worker_fetches_its_own(monkeypatch):
    fetched, original = [], ArrayTable.lent

    def noted(self, numbers):
        fetched.append(list(numbers))
        return original(self, numbers)

    monkeypatch.setattr(ArrayTable, "lent", noted)
    dataset = Dataset.from_tensor_slices(np.arange(16.0)).batch(8)
    assert flat(dataset, DATA, 4, 2) == [[4.0, 5.0], [12.0, 13.0]]
    # The first batch is compared as a whole, the others by their ends, which are fetched together.
    assert fetched == [[4, 5], [0, 7, 8, 15], list(range(8)), [12, 13]]


def known(shares):
    """What all shares are known by, in their order, and how many at a time."""
    groups = [share.announcements for share in shares]
    return [one for group in groups for one in group], list(map(len, groups))


@pytest.mark.parametrize("rows", [16, 17, 13, 67])
def test_batches_are_compared_alike_however_they_are_read(rows):
    memory = Dataset.from_tensor_slices((np.arange(rows), np.ones((rows, 2)))).batch(4)
    made = Dataset.from_generator(lambda: iter(memory))
    for worker in range(3):
        one, other = (
            Feed(sharing(data, DATA, 3, worker), (0,)).elements(99) for data in (memory, made)
        )
        (mine, together), (its, by_one) = known(one), known(other)
        assert mine == its == [(share.sizes, share.digest) for share in other]
        assert len({digest for _, digest in mine}) == len(one) == -(-rows // 4)
        assert together[::8] == [min(8, len(one) - place) for place in range(0, len(one), 8)]
        assert by_one == [1] * len(other)
        for a_share, b_share in zip(one, other, strict=True):
            for a, b in zip(a_share.pieces[0], b_share.pieces[0], strict=True):
                np.testing.assert_array_equal(a, b)
                assert (a.dtype, a.shape) == (b.dtype, b.shape)


def test_of_batches_that_are_not_taken_nobody_is_told():
    rows = Dataset.from_tensor_slices(np.arange(40.0)).batch(4)
    taken = [(rows.take(3), 0), (rows.skip(2).take(3), 8), (rows.take(5).skip(2), 8)]
    for dataset, first in [*taken, (rows.take(3).prefetch(2), 0), (rows.prefetch(2).take(3), 0)]:
        shares = Feed(sharing(dataset, DATA, 2, 0), (0,)).elements(99)
        assert len(known(shares)[0]) == len(shares) == 3
        assert shares[0].batch().tolist() == [first, first + 1]


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_position_among_batches_that_are_known_together(ahead):
    dataset = Dataset.from_tensor_slices(np.arange(80.0)).batch(4)
    node = sharing(dataset.prefetch(ahead) if ahead else dataset, DATA, 2, 1)
    feed = Feed(node, (0,))
    feed.elements(3)
    rest = Feed(node, (0,))
    rest.set_state(feed.get_state())
    expected = [share.batch().tolist() for share in feed.elements(99)]
    found = rest.elements(99)
    assert [share.batch().tolist() for share in found] == expected
    assert expected[0] == [14, 15]
    assert known(found)[1][:9] == [8, *[0] * 7, 8]  # of all workers from the same position


def test_of_batches_behind_one_that_was_passed_over_the_others_are_told():
    batches = Dataset.from_tensor_slices(np.arange(80.0)).batch(4).prepared()
    node = ShardedSource(Prefetch(batches, 2, portion=3), DATA, 2, 0, 1)
    feed, rest = Feed(node, (0,)), Feed(node, (0,))
    feed.elements(2)  # of three that were read together: their position is that of the first
    rest.set_state(feed.get_state())
    found = rest.elements(99)
    assert [share.batch().tolist()[0] for share in found] == list(range(8, 80, 4))
    assert len(known(found)[0]) == len(found)


def test_a_list_of_files_is_divided_before_it_is_shuffled(tmp_path):
    for name in range(5):
        (tmp_path / f"{name}.txt").write_text("")
    listed = Dataset.list_files(str(tmp_path / "*"), seed=1).batch(2)
    read = [sum(flat(listed, FILE, 2, worker), []) for worker in (0, 1)]
    assert sorted(name[-5] for name in read[0]) == ["0", "2", "4"]
    assert sorted(name[-5] for name in read[1]) == ["1", "3"]


def test_planned_pieces_of_all_workers_make_up_every_global_batch():
    # 28: [2, 2, 2, 1] and [2, 1, 2, 2]; each worker takes two of its four sizes in a step.
    dataset = numbers(28).batch(7)
    sizes = [
        [list(map(len, step)) for step in steps(dataset, OFF, 2, worker, replicas=2)]
        for worker in (0, 1)
    ]
    assert sizes[0][:2] == [[2, 2], [2, 1]]
    assert sizes[1][:2] == [[2, 1], [2, 2]]
    assert {sum(a) + sum(b) for a, b in zip(*sizes, strict=True)} == {7}


def test_a_worker_without_rows_in_a_step_loses_none():
    # One row in a global batch of four replicas: a worker's turn to have it comes every other step.
    found = steps(numbers(3).batch(1), OFF, workers=2, worker=0, replicas=2)
    assert found == [[[0], []], [[], []], [[1], []], [[], []], [[2], []]]


def test_batches_are_dealt_to_the_replicas_in_turn():
    dealing = PerReplicaSource((numbers(9).batch(2).node,), 2)
    found = [rows(share) for share in Feed(dealing, (0,)).elements(9)]
    assert found == [[[0, 1], [2, 3]], [[4, 5], [6, 7]], [[8], []]]  # 37


def read(node, count=1000, position=None):
    """The rows of some steps, and the position after them."""
    feed = Feed(node, (0,))
    if position is not None:
        feed.set_state(position)
    shares = feed.elements(count)
    return [row for share in shares for piece in rows(share) for row in piece], feed.get_state()


@pytest.mark.parametrize("size", [8, 5])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("before", "after"), [((2, FILE), (3, DATA)), ((3, DATA), (2, FILE)), ((1, FILE), (1, DATA))]
)
def test_workers_that_share_otherwise_go_on_where_the_others_were(before, after, known, size):
    # AUTO: two workers read a file each; three have too few files, and read everything.
    dataset = files(*"01").batch(size)
    dataset = dataset if known else dataset.map(lambda x: x)
    first = [read(sharing(dataset, before[1], before[0], w), 1) for w in range(before[0])]
    nodes = [sharing(dataset, after[1], after[0], w) for w in range(after[0])]
    positions = [position for _, position in first]
    second = [read(node, 1, redistributed(positions, node)) for node in nodes]
    rest = [read(node, position=p) for node, (_, p) in zip(nodes, second, strict=True)]
    seen = sorted(sum((part for part, _ in first + second + rest), []))
    assert seen == [100 * name + row for name in range(2) for row in range(12)]


def test_a_position_after_a_change_of_workers_is_a_position_too():
    dataset = files(*"0123").batch(4)
    positions = [read(sharing(dataset, FILE, 4, w), 1)[1] for w in range(4)]
    node = sharing(dataset, FILE, 2, 0)
    whole, _ = read(node, position=redistributed(positions, node))
    some, position = read(node, 3, position=redistributed(positions, node))
    rest, _ = read(node, position=position)
    assert some + rest == whole


def test_the_arrays_of_a_share_are_those_of_the_batch():
    (share,) = Feed(sharing(numbers(4).batch(4), DATA, replicas=2), (0,)).elements(1)
    assert all(np.shares_memory(piece, share.whole) for piece in share.pieces)


def test_batches_of_device_arrays_stay_on_their_device():
    dataset = numbers(4).batch(4).map(jax.jit(lambda x: x * 2))
    (share,) = Feed(sharing(dataset, DATA, replicas=2), (0,)).elements(1)
    assert all(isinstance(piece, jax.Array) for piece in share.pieces)
