"""No row is lost or repeated, whatever the sizes; and every position can be gone on from."""

import pickle
import warnings

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replicax._input.policy import plan_shards
from replicax._input.sharing import ShardedSource, redistributed
from replicax.data import AutoShardPolicy, Dataset
from replicax.data._node import Feed
from replicax.data._nodes.files import FileRecords
from replicax.data.experimental import SHARD_HINT

EPOCH = (2,)


class Numbers:
    """A file format: a file is called by its first number and its length."""

    def records(self, path, start):
        first, length = map(int, path.split("+"))
        for position in range(start or 0, length):
            yield np.int64(first + position), position + 1


@st.composite
def data_sets(draw):
    """A data set of the numbers below some count, in files or not, in batches, in any order."""
    lengths = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))
    if draw(st.booleans()):
        starts = np.cumsum([0, *lengths[:-1]]).tolist()
        names = tuple(f"{a}+{n}" for a, n in zip(starts, lengths, strict=True))
        dataset = Dataset(FileRecords(names, Numbers()))
    else:
        dataset = Dataset.range(sum(lengths))
    if draw(st.booleans()):
        dataset = dataset.shard(SHARD_HINT, SHARD_HINT)
    if draw(st.booleans()):
        dataset = dataset.shuffle(draw(st.integers(1, 20)), seed=draw(st.integers(0, 9)))
    dataset = dataset.batch(draw(st.integers(1, 9)))
    if draw(st.booleans()):
        dataset = dataset.map(lambda batch: batch)  # hides the batch size
    return dataset, sum(lengths)


POLICIES = st.sampled_from(list(AutoShardPolicy))
FEW = st.integers(1, 4)


def shares_of(dataset, asked, workers, replicas):
    """One `ShardedSource` per worker, or None if the policy needs more files than there are."""
    if asked is AutoShardPolicy.FILE:
        asked = AutoShardPolicy.AUTO
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # AUTO with too few files says that it is DATA
        plan = plan_shards(dataset.node, asked, workers=workers, replicas=replicas)
    return [ShardedSource(dataset.node, plan.policy, workers, w, replicas) for w in range(workers)]


def rows(shares):
    return [int(row) for share in shares for piece in share.pieces for row in piece]


def read(node, count=10_000, position=None):
    feed = Feed(node, EPOCH)
    if position is not None:
        feed.set_state(pickle.loads(pickle.dumps(position)))
    return rows(feed.elements(count)), feed.get_state()


@given(data_sets(), POLICIES, FEW, FEW)
def test_every_row_goes_to_one_replica(made, asked, workers, replicas):
    dataset, count = made
    parts = [read(node)[0] for node in shares_of(dataset, asked, workers, replicas)]
    if shares_of(dataset, asked, workers, replicas)[0].policy is AutoShardPolicy.OFF:
        assert all(sorted(part) == list(range(count)) for part in parts)
    else:
        assert sorted(sum(parts, [])) == list(range(count))


@given(data_sets(), POLICIES, FEW, FEW)
def test_data_keeps_every_global_batch_together(made, asked, workers, replicas):
    dataset, _ = made
    nodes = shares_of(dataset, AutoShardPolicy.DATA, workers, replicas)
    steps = zip(*[Feed(node, EPOCH).elements(1000) for node in nodes], strict=True)
    batches = [batch.tolist() for batch in Feed(dataset.node, EPOCH).elements(1000)]
    assert [rows(step) for step in steps] == batches


@given(data_sets(), POLICIES, FEW, FEW, st.integers(0, 12))
def test_a_position_gives_the_rest(made, asked, workers, replicas, taken):
    dataset, _ = made
    for node in shares_of(dataset, asked, workers, replicas):
        whole, _ = read(node)
        first, position = read(node, taken)
        assert first + read(node, position=position)[0] == whole


@given(data_sets(), POLICIES, FEW, FEW, FEW, st.integers(0, 12))
def test_a_position_gives_the_same_rows_on_other_replicas(
    made, asked, workers, before, after, taken
):
    dataset, _ = made
    old = shares_of(dataset, asked, workers, before)
    new = shares_of(dataset, asked, workers, after)
    if old[0].policy is AutoShardPolicy.DATA:
        # What one worker of several reads of a batch depends on the replicas: all together.
        firsts = [read(node, taken) for node in old]
        rests = [read(n, position=p)[0] for n, (_, p) in zip(new, firsts, strict=True)]
        whole = sum((read(node)[0] for node in old), [])
        assert sorted(sum((part for part, _ in firsts), []) + sum(rests, [])) == sorted(whole)
        return
    for node, other in zip(old, new, strict=True):
        first, position = read(node, taken)
        assert first + read(other, position={**position, "turn": 0})[0] == read(node)[0]


@given(data_sets(), POLICIES, FEW, FEW, st.integers(0, 6))
def test_other_workers_go_on_where_they_were(made, asked, before, after, taken):
    dataset, count = made
    old = shares_of(dataset, asked, before, 2)
    new = shares_of(dataset, asked, after, 2)
    if AutoShardPolicy.OFF in (old[0].policy, new[0].policy):
        return
    firsts = [read(node, taken) for node in old]
    positions = [position for _, position in firsts]
    rests = [read(n, position=redistributed(positions, n))[0] for n in new]
    seen = sum((part for part, _ in firsts), []) + sum(rests, [])
    assert sorted(seen) == list(range(count))
