"""Variables on parameter servers: placement, shards that act as one, files.

Numbers in comments are pairs of the semantics' list A; the expected values are TensorFlow's.
"""

import contextlib

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

partitioners = rx.experimental.partitioners
Fixed = partitioners.FixedShardsPartitioner
EIGHT = np.arange(1.0, 17.0, dtype="float32").reshape(8, 2)  # [[1, 2] … [15, 16]]


def made(strategy, value, **options):
    with strategy.scope():
        return keras.Variable(value, **options)


def tasks(variable):
    """The number of the task of each shard."""
    return [int(shard.device.removesuffix("/device:CPU:0")[-1]) for shard in variable.variables]


def rows_of(variable):
    return [np.asarray(shard).tolist() for shard in variable.variables]


def test_variables_go_to_the_servers_in_turn(started):  # 19
    strategy = started(servers=3)
    variables = [made(strategy, float(n)) for n in range(5)]
    assert [v.device for v in variables] == [
        f"/job:ps/replica:0/task:{n}/device:CPU:0" for n in [0, 1, 2, 0, 1]
    ]
    assert [float(v.value) for v in variables] == [0, 1, 2, 3, 4]
    assert strategy.extended.parameter_devices == tuple(
        f"/job:ps/replica:0/task:{n}/device:CPU:0" for n in range(3)
    )


def test_each_shard_takes_a_turn(started):  # 3.9
    strategy = started(Fixed(4), servers=3)
    first, scalar, last = (
        made(strategy, np.ones((8, 2))),
        made(strategy, 1.0),
        made(strategy, [1.0]),
    )
    assert tasks(first) == [0, 1, 2, 0]
    # A scalar has no rows, and one row is one shard: both are whole.
    assert (scalar.device, last.device) == (
        "/job:ps/replica:0/task:1/device:CPU:0",
        "/job:ps/replica:0/task:2/device:CPU:0",
    )
    with pytest.raises(AttributeError, match=r"4 shards.*shard.device"):
        _ = first.device


def test_a_variable_outside_the_scope_stays_until_a_closure_uses_it(started):  # 19
    strategy = started()
    inside, outside = made(strategy, 1.0), keras.Variable(2.0)
    assert not hasattr(outside, "device")
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    add = rx.function(lambda: outside.assign_add(inside.value))
    assert float(coordinator.schedule(add).fetch()) == 3
    assert outside.device == "/job:ps/replica:0/task:1/device:CPU:0"
    assert float(outside.value) == 3


@pytest.mark.parametrize(
    ("partitioner", "value", "shapes"),
    [
        (Fixed(4), [0, 1, 2], [(1,), (1,), (1,)]),  # 13
        (Fixed(4), np.zeros((13, 2)), [(4, 2), (3, 2), (3, 2), (3, 2)]),  # 14
        (Fixed(5), np.zeros(13), [(3,), (3,), (3,), (2,), (2,)]),
        (Fixed(4), np.zeros(10), [(3,), (3,), (2,), (2,)]),  # 3.9
        (lambda shape, dtype: [2, 1], np.zeros((4, 3)), [(2, 3), (2, 3)]),
        (lambda shape, dtype: (9, 1), np.zeros((2, 3)), [(1, 3), (1, 3)]),
    ],
)
def test_rows_are_divided_as_evenly_as_can_be(started, partitioner, value, shapes):
    variable = made(started(partitioner, servers=3), value)
    assert [shard.shape for shard in variable.variables] == shapes
    assert {shard.dtype for shard in variable.variables} == {variable.dtype}
    assert variable.shape == np.shape(value)


def test_an_initializer_is_divided_by_value(started):  # 16
    variable = made(started(Fixed(2)), keras.initializers.Identity(), shape=(4, 4))
    assert rows_of(variable) == [np.eye(4)[:2].tolist(), np.eye(4)[2:].tolist()]
    assert variable.numpy().tolist() == np.eye(4).tolist()


def test_a_small_variable_is_left_whole(started):  # 17
    partitioner = partitioners.MinSizePartitioner(64 << 20, max_shards=2)
    variable = made(started(partitioner), np.arange(10), dtype="int32")
    assert (
        variable.device == "/job:ps/replica:0/task:0/device:CPU:0"
    )  # sharded variables have no device
    assert variable.numpy().tolist() == list(range(10))


@pytest.mark.parametrize("answer", [[0, 1], 2])  # 3.9, 11; the others in test_partition.py
def test_a_partitioner_may_divide_rows_alone(started, answer):
    strategy = started(lambda shape, dtype: answer)
    message = r"elements are 1 besides the first element \(non-zero\), got "
    with pytest.raises(UsageError, match=message):
        made(strategy, np.zeros((4, 3)))


def test_shards_act_as_one_variable(started):  # 20
    variable = made(started(Fixed(3)), np.zeros((4, 2)), dtype="float32")
    assert (variable.shape, variable.dtype) == ((4, 2), "float32")
    variable.assign([[4, 4], [5, 5], [6, 6], [7, 7]])
    assert rows_of(variable) == [[[4, 4], [5, 5]], [[6, 6]], [[7, 7]]]
    variable.assign_add(np.full((4, 2), 2.0))
    variable.assign_sub([[1, 0]] * 4)
    assert (variable + 0.0).tolist() == [[5, 6], [6, 7], [7, 8], [8, 9]]
    with pytest.raises(ValueError, match=r"\(4, 2\)"):
        variable.assign(np.zeros((5, 2)))
    assert made(started(Fixed(2)), [0, 1], dtype="int32").shape == (2,)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (np.s_[:2], [[1, 2], [3, 4]]),  # 23
        (np.s_[2:7:2], [[5, 6], [9, 10], [13, 14]]),
        (np.s_[:, 0], [1, 3, 5, 7, 9, 11, 13, 15]),  # 25
        (6, [13, 14]),
        (np.s_[2, 1], 6),
    ],
)
def test_an_index_gives_rows_of_all_shards(eight, index, expected):
    found = eight[index]
    assert found.tolist() == expected
    assert found.dtype == "float32"


@pytest.fixture(scope="module")
def eight():
    """`EIGHT` in shards of 3, 3 and 2 rows."""
    strategy = rx.ParameterServerStrategy(
        variable_partitioner=Fixed(3), engine="threads", num_workers=1, num_ps=2
    )
    variable = made(strategy, EIGHT)
    assert [shard.shape[0] for shard in variable.variables] == [3, 3, 2]
    yield variable
    strategy.close()


def test_an_index_may_be_a_comparison(eight):  # 25
    assert eight[eight > 10].tolist() == [11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    ("index", "error", "message"),
    [
        (100, IndexError, "out of bounds"),
        (np.s_[0, 2], IndexError, "out of bounds"),
        (np.array([0, 1]), TypeError, "not allowed"),
        ([0, 1], TypeError, "not allowed"),
    ],
)
def test_an_index_that_is_none_is_refused(eight, index, error, message):  # 25
    with pytest.raises(error, match=message):
        eight[index]


def test_lookups_fetch_rows_of_all_shards(started):  # 26
    table = made(started(Fixed(3)), EIGHT[:5])
    assert rx.nn.embedding_lookup(table, [0, 3, 4]).tolist() == [[1, 2], [7, 8], [9, 10]]
    # {(0, 0): 0, (0, 1): 3, (1, 0): 4, (2, 2): 1}, also where the shape is filled up.
    indices = np.array([[0, 0], [0, 1], [1, 0], [2, 2]])
    expected = [[4, 5], [9, 10], [3, 4]]
    triple = (indices, np.array([0, 3, 4, 1]), (3, 3))
    assert rx.nn.embedding_lookup_sparse(table, triple, combiner="mean").tolist() == expected
    padded = np.array([[0, 3, -1], [4, -1, -1], [-1, -1, 1]])
    assert rx.nn.embedding_lookup_sparse(table, padded).tolist() == expected


def test_an_id_that_is_none_reads_and_trains_nothing(started):
    strategy = started(Fixed(2))
    table = made(strategy, EIGHT[:4])
    with strategy.scope():
        optimizer = keras.optimizers.SGD(1.0)

    @rx.function
    def step(ids):
        def total():
            rows = rx.nn.embedding_lookup(table, ids)
            return rows.sum(), rows

        (_, rows), grads = rx.value_and_grad(total, [table], has_aux=True)()
        optimizer.apply(grads, [table])
        return rows

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    found = coordinator.schedule(step, args=(np.array([3, -1, 3]),)).fetch()
    np.testing.assert_array_equal(found, [[7, 8], [np.nan, np.nan], [7, 8]])
    assert table.numpy().tolist() == [[1, 2], [3, 4], [5, 6], [5, 6]]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("add", [[3, 4], [3, 4], [5, 6], [14, 15]]),
        ("sub", [[-1, 0], [3, 4], [5, 6], [0, 1]]),
        ("mul", [[2, 4], [3, 4], [5, 6], [70, 80]]),
        ("div", [[0.5, 1], [3, 4], [5, 6], [0.7, 0.8]]),
        ("min", [[1, 2], [3, 4], [5, 6], [2, 2]]),
        ("max", [[2, 2], [3, 4], [5, 6], [7, 8]]),
        ("update", [[2, 2], [3, 4], [5, 6], [5, 5]]),
    ],
)
def test_rows_are_changed_where_they_are(eight, how, expected):  # 3.9
    """Row 0 gets 2, row 3 gets 2 and then 5."""
    eight.assign(EIGHT)
    getattr(eight, f"scatter_{how}")([0, 3, 3], [[2, 2], [2, 2], [5, 5]])
    np.testing.assert_allclose(eight[:4], expected, rtol=1e-6)
    assert eight[4:].tolist() == EIGHT[4:].tolist()


def test_one_row_may_be_for_all(eight):
    eight.assign(EIGHT)
    eight.scatter_add([0, 4], [1, 2])  # 26: TensorFlow has it with a row for each
    eight.scatter_update([7], 9)
    assert eight[::4].tolist() == [[2, 4], [10, 12]]
    assert eight[7].tolist() == [9, 9]
    for row in (-1, 8):
        with pytest.raises(IndexError, match=rf"Row {row} is out of bounds"):
            eight.scatter_add([0, row], [1, 1])
    assert eight[0].tolist() == [2, 4]


def tiny_model():
    """A kernel of four rows; in each file it is to be found again."""
    layers = [keras.Input((4,)), keras.layers.Dense(1, name="d", use_bias=False)]
    return keras.Sequential(layers)


FILES = {
    "weights": (lambda m, path: m.save_weights(path), lambda m, path: m.load_weights(path)),
    "model": (lambda m, path: m.save(path), lambda m, path: keras.saving.load_model(path)),
    "checkpoint": (
        lambda m, path: rx.train.Checkpoint(model=m).write(path),
        lambda m, path: rx.train.Checkpoint(model=m).read(path),
    ),
}
SUFFIXES = {"weights": ".weights.h5", "model": ".keras", "checkpoint": ""}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("written", [4, None])
def test_files_know_nothing_of_shards(started, tmp_path, kind, written):  # 22
    save, load = FILES[kind]
    path = str(tmp_path / f"file{SUFFIXES[kind]}")
    with context(started, written):
        model = tiny_model()
    model.set_weights([np.array([[5], [10], [15], [20]], "float32")])
    save(model, path)
    for shards, expected in [
        (1, None),
        (2, [[[5], [10]], [[15], [20]]]),
        (4, [[[5]], [[10]], [[15]], [[20]]]),
        (None, None),
    ]:
        with context(started, shards):
            restored = tiny_model()
            loaded = load(restored, path)
        kernel = (loaded if kind == "model" else restored).variables[0]
        assert kernel.numpy().tolist() == [[5], [10], [15], [20]]
        assert expected is None or rows_of(kernel) == expected
        assert hasattr(kernel, "device") == (shards == 1)


def context(started, shards):
    """The scope of a strategy that divides variables; none of no strategy."""
    return contextlib.nullcontext() if shards is None else started(Fixed(shards)).scope()


def test_a_variable_of_tensorflows_kind(started):
    strategy = started(Fixed(4), servers=2)
    with strategy.scope():
        v = rx.Variable(EIGHT, aggregation=rx.VariableAggregation.MEAN)
        w = rx.Variable(1.0)
    assert v.variables[0].device == "/job:ps/replica:0/task:0/device:CPU:0"
    assert v[1].tolist() == [3.0, 4.0]
    v[1].assign([0.0, 0.0])
    assert v.numpy()[:3].tolist() == [[1, 2], [0, 0], [5, 6]]
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    add = rx.function(lambda: w.assign_add(2.0))
    coordinator.schedule(add)
    coordinator.schedule(add)
    coordinator.join()
    assert float(w.assign_add(0.5).numpy()) == 5.5
    assert isinstance(w, rx.Variable)
