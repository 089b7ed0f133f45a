"""`rx.Variable`: made, sliced and assigned as TensorFlow's variables are."""

import types

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.tf._flow.control_flow import cond

from helpers import batch_of, few_strategies, local


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, None, "float32"),
        (3, None, "int32"),
        (True, None, "bool"),
        ([1, 2], None, "int32"),
        (np.float64(2.0), None, "float32"),
        (np.int64(2), None, "int32"),
        (np.ones(2, "float16"), None, "float16"),
        (1, "float32", "float32"),
        (jnp.ones(2, "bfloat16"), None, "bfloat16"),
        (lambda: np.ones(2, "uint8"), None, "uint8"),
    ],
)
def test_the_type_is_that_of_the_value(value, dtype, expected):
    assert rx.Variable(value, dtype=dtype).value.dtype == expected


def test_every_keras_variable_is_one():
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    assert all(isinstance(v, rx.Variable) for v in [*layer.variables, rx.Variable(1.0)])
    assert isinstance(rx.Variable(1.0), keras.Variable)
    assert not isinstance(jnp.ones(2), rx.Variable)


def test_its_properties():
    v = rx.Variable([1.0, 2.0], name="outer/weights:0", constraint=keras.constraints.NonNeg())
    assert (v.name, v.path, v.get_shape(), v.trainable) == ("weights", "outer/weights", (2,), True)
    assert isinstance(v.constraint, keras.constraints.NonNeg)
    assert v.is_initialized()
    assert not rx.Variable(1.0, synchronization="on_read").trainable
    assert rx.Variable(0.0, shape=(2, 3)).shape == (2, 3)
    assert rx.Variable(keras.initializers.Ones(), shape=(2,)).numpy().tolist() == [1.0, 1.0]
    assert {v.ref(): "mine"}[v.ref()] == "mine"
    assert v.ref().deref() is v


def test_aggregations_and_synchronizations_are_keras_strings_too():
    v = rx.Variable(
        1.0,
        aggregation=rx.VariableAggregation.SUM,
        synchronization=rx.VariableSynchronization.ON_READ,
    )
    assert (v.aggregation, v.synchronization) == ("sum", "on_read")
    assert v.aggregation == rx.VariableAggregation.SUM
    plain = keras.Variable(1.0, aggregation=rx.VariableAggregation.ONLY_FIRST_REPLICA)
    assert plain.aggregation == "only_first_replica"
    assert {a.name for a in rx.VariableAggregation} == {"NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"}


def test_assigning_gives_the_variable():
    v = rx.Variable(1.0)
    assert v.assign(3.0).assign_add(1.0) is v
    assert float(v.assign_sub(0.5).numpy()) == 3.5
    assert v.assign(2.0, read_value=False) is None
    assert (float(v.read_value()), float(v.initialized_value())) == (2.0, 2.0)


def test_assigning_in_a_compiled_function_gives_the_value():
    v = rx.Variable(1.0)
    fn = rx.function(lambda x: v.assign_add(x))
    assert [float(fn(jnp.float32(2.0))) for _ in range(2)] == [3.0, 5.0]
    assert isinstance(fn(jnp.float32(2.0)), jax.Array)


def test_operators():
    v = rx.Variable([1.0, 2.0])
    assert (v + 1 == jnp.array([2.0, 3.0])).all()
    assert (2 * v - v / 2).tolist() == [1.5, 3.0]


def changed(v):
    v[0].assign(5.0)
    v[1:].assign_add([10.0, 20.0])
    v[-1].assign_sub(1.0)


@pytest.mark.parametrize("way", [rx.function, lambda fn: fn], ids=["compiled", "python"])
def test_slices_are_arrays_and_can_be_assigned(way):
    v = rx.Variable([1.0, 2.0, 3.0])
    way(lambda: changed(v))()
    assert v.numpy().tolist() == [5.0, 12.0, 22.0]
    part = v[1:]
    assert (part.shape, len(part), part[0].tolist(), part.numpy().tolist()) == (
        (2,),
        2,
        12,
        [12, 22],
    )
    assert (float(v[0]), int(v[0]), bool(v[0] > 1), f"{v[0]:.1f}") == (5.0, 5, True, "5.0")
    assert (1 - part + part * 2 - -part).tolist() == [25.0, 45.0]
    assert (np.float32(2) * part).tolist() == [24.0, 44.0]
    assert jnp.sum(part) == 34.0
    assert (part == None) is False and (part != None) is True  # noqa: E711
    assert jax.grad(lambda x: (part * x).sum())(jnp.ones(2)).tolist() == [12.0, 22.0]
    assert np.asarray(part).tolist() == [12.0, 22.0]
    assert keras.ops.max(part) == 22.0
    assert [float(x) for x in v] == [5.0, 12.0, 22.0]
    assert isinstance(way(lambda: v[0])() + 0.0, jax.Array)
    assert isinstance(jax.tree.leaves(part)[0], jax.Array)
    v.assign(v[::-1])
    assert v.numpy().tolist() == [22.0, 12.0, 5.0]
    assert repr(v[0]) == repr(v.value[0])


def test_rows_are_scattered():
    v = rx.Variable(np.zeros((3, 2), "float32"))
    v.scatter_add(types.SimpleNamespace(indices=[0, 2, 0], values=[[1.0, 1], [2, 2], [3, 3]]))
    assert v.numpy().tolist() == [[4, 4], [0, 0], [2, 2]]
    v.scatter_sub(types.SimpleNamespace(indices=[2], values=[[1.0, 0.0]]))
    v.scatter_update(types.SimpleNamespace(indices=[1], values=[[7.0, 8.0]]))
    assert v.numpy().tolist() == [[4, 4], [7, 8], [1, 2]]
    v.scatter_nd_update([[0, 1], [2, 0]], [9.0, 6.0])
    v.scatter_nd_add([[1]], [[1.0, 1.0]])
    v.scatter_nd_sub([[0, 0]], [4.0])
    assert v.numpy().tolist() == [[0, 9], [8, 9], [6, 2]]
    assert v.gather_nd([[0, 1], [2, 0]]).tolist() == [9, 6]
    assert v.sparse_read([2, 0]).tolist() == [[6, 2], [0, 9]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "`initial_value`"),
        ("text", "cannot hold a str"),
        (2**40, "^1099511627776 does not fit"),
        (np.int64(-(2**40)), "-1099511627776 does not fit"),
    ],
)
def test_what_is_no_beginning(value, message):
    with pytest.raises(rx.errors.UsageError, match=message):
        rx.Variable(value)


class Counter:
    def __init__(self, beginning):
        self.v = None
        self.beginning = beginning

    @rx.function
    def __call__(self, x):
        if self.v is None:
            self.v = rx.Variable(self.beginning, name="made")
        return self.v.assign_add(x)


@pytest.mark.parametrize("beginning", [1.0, np.float32(1.0), lambda: jnp.ones(())])
def test_a_variable_may_be_made_in_the_first_call(beginning):
    counter = Counter(beginning)
    assert [float(counter(jnp.float32(2.0))) for _ in range(2)] == [3.0, 5.0]
    assert float(counter.v.value) == 5.0


def test_a_variable_made_in_every_call_is_refused():
    with pytest.raises(ValueError, match="creates variables on a non-first call"):
        rx.function(lambda: rx.Variable(1.0).assign_add(1.0))()


def test_a_variable_of_what_a_function_computes_is_made_once():
    fn = rx.function(lambda x: rx.Variable(x) + 1.0)
    assert float(fn(jnp.float32(1.0))) == 2.0  # the first call runs as Python
    with pytest.raises(ValueError, match="computed value in a later call"):
        fn(jnp.float32(1.0))
    with pytest.raises(rx.errors.UsageError):
        rx.get_strategy().run(lambda x: rx.Variable(x) + 1.0, args=(jnp.float32(1.0),))


def test_the_first_value_may_be_computed():
    class Counter:
        v = None

        @rx.function
        def __call__(self, x):
            if self.v is None:
                self.v = rx.Variable(jnp.zeros(x.shape))
            return self.v.assign_add(x) * 1.0

    counter = Counter()
    assert [float(counter(jnp.float32(2.0))) for _ in range(3)] == [2.0, 4.0, 6.0]
    assert Counter.__call__.num_traces == 1


@few_strategies
def test_it_belongs_to_the_strategy_of_its_scope(strategy):
    with strategy.scope():
        v = rx.Variable(0.0, aggregation=rx.VariableAggregation.SUM)
        w = rx.Variable(lambda: np.zeros(3, "float32"), aggregation=rx.VariableAggregation.MEAN)

    def replica_fn(rows):
        w[0].assign(rows.mean())
        return v.assign_add(rows.sum())

    x = np.arange(12, dtype="float32")
    result = strategy.run(replica_fn, args=(batch_of(strategy, x),))
    # As in TensorFlow, assigning gives what all replicas have added.
    assert {float(value) for value in local(strategy, result)} == {x.sum()}
    assert float(v.numpy()) == x.sum()
    assert w.numpy().tolist() == [x.mean(), 0.0, 0.0]


def _aligned(size):
    """Ones in memory that JAX on a CPU would share, if it were let."""
    raw = np.zeros(4 * size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    ones = raw[start : start + 4 * size].view("float32")
    ones[:] = 1.0
    return ones


@pytest.mark.parametrize(
    "holds",
    [
        rx.Variable,
        lambda array: rx.Variable(np.zeros(8, "float32")).assign(array),
        lambda array: rx.function(lambda: _made_inside(array))(),
    ],
    ids=["made", "assigned", "made in a function"],
)
def test_it_keeps_its_value_when_the_array_it_came_from_changes(holds):
    array = _aligned(8)
    variable = holds(array)
    array[:] = 5.0
    np.testing.assert_array_equal(variable, np.ones(8))


def _made_inside(array):
    if "v" not in _KEPT:
        _KEPT["v"] = rx.Variable(array)
    array[:] = 7.0  # before the variable is made, when the trace is over
    return _KEPT["v"] + 0.0


_KEPT = {}


def test_parts_of_a_sum_are_added_once_per_replica(mirrored):
    with mirrored.scope():
        v = rx.Variable([1.0, 5.0], aggregation="sum")

    def assign():
        own = rx.get_replica_context().replica_id_in_sync_group + 2.0
        return v[0].assign(own)

    found = mirrored.run(assign)
    # 1 + (2 - 1) + (3 - 1); what stays is not counted again.
    assert [value.tolist() for value in local(mirrored, found)] == [[4.0, 5.0]] * 2
    assert v.numpy().tolist() == [4.0, 5.0]


def test_what_is_not_written_of_a_sum_stays_as_it_is(mirrored):
    with mirrored.scope():
        v = rx.Variable([1.0, np.inf, -np.inf, 1e-30], aggregation="sum")
    mirrored.run(lambda: v[0].assign(1e30))
    assert v.numpy().tolist() == [np.float32(2e30), np.inf, -np.inf, np.float32(1e-30)]


def test_a_branch_gives_the_value_of_its_replica(mirrored):
    with mirrored.scope():
        v = rx.Variable(1.0, aggregation="sum")

    def add():
        first = rx.get_replica_context().replica_id_in_sync_group == 0
        return cond(first, lambda: v.assign_add(10.0), lambda: v + 0.0)

    assert [float(value) for value in local(mirrored, mirrored.run(add))] == [11.0, 1.0]
    assert float(v.numpy()) == 11.0
