"""Where variables, slots and batches live, as Keras asks."""

import contextvars
import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import replicax as rx
from replicax._core.placement import VariableSpec
from replicax._fit.step_program import shard_batch
from replicax._keras import _compat
from replicax._keras.distribution import adopt, check_variable, with_distribution
from replicax.testing import MATRIX, strategy_params

CENTRAL = "central_storage_2"


def device_ids(value):
    return sorted(device.id for device in value.devices())


@pytest.fixture(params=["mirrored_2", CENTRAL], scope="module")
def two(request):
    return MATRIX[request.param]()


@pytest.mark.parametrize(
    ("shape", "is_split"),
    [((8, 3), True), ((2,), True), ((9, 3), False), ((1,), False), ((), False)],
)
def test_a_batch_is_placed_split_where_the_replicas_divide_it(two, shape, is_split):
    layout = two.extended.distribution.get_data_layout(shape)
    assert layout.is_fully_replicated is not is_split
    assert len(layout.device_set) == 2


def test_nothing_inside_a_model_has_a_layout(mirrored):
    assert mirrored.extended.distribution.get_tensor_layout("dense/output") is None


def test_keras_does_not_shard_the_data_set(mirrored):
    distribution = mirrored.extended.distribution
    assert distribution.auto_shard_dataset is False
    assert distribution.batch_dim_name == "replica"
    assert distribution.device_mesh.shape == (2,)


def test_a_layout_is_given_once(mirrored):
    with mirrored.scope():
        v = keras.Variable(1.0)
    layout = mirrored.extended.distribution.get_variable_layout(v)
    assert layout is _compat.layout(v)
    _compat.adopt(v, "store", "another layout")
    assert mirrored.extended.distribution.get_variable_layout(v) == "another layout"


def spreading(strategy):
    return functools.partial(shard_batch, strategy.extended.distribution.topology)


def test_a_batch_is_spread_over_the_replicas(two):
    out = jax.jit(spreading(two))(
        {"even": jnp.ones((4, 2)), "scalar": jnp.float32(3), "single": jnp.ones((1, 2))}
    )
    assert [shard.data.shape for shard in out["even"].addressable_shards] == [(2, 2), (2, 2)]
    assert float(out["scalar"]) == 3.0
    assert out["single"].shape == (1, 2)


def test_a_batch_that_the_replicas_do_not_divide_keeps_its_rows(two):
    rows = np.arange(5, dtype="float32")
    divide = spreading(two)
    total, same = jax.jit(lambda x: (jnp.sum(divide(x)), divide(x)))(rows)
    assert float(total) == 10.0
    assert np.asarray(same).tolist() == rows.tolist()


def test_one_replica_has_nothing_to_spread():
    batch = {"x": jnp.ones(3)}
    assert spreading(rx.OneDeviceStrategy("CPU:1"))(batch) is batch


def test_variables_made_outside_of_one_array_do_not_share_memory(two):
    array = jnp.ones(2)
    one, other = keras.Variable(array), keras.Variable(array)
    two.run(lambda: one.assign_add([1.0, 1.0]))
    assert one.value.tolist() == [2.0, 2.0]
    assert other.value.tolist() == [1.0, 1.0]


def test_adopting_twice_changes_nothing(mirrored):
    v = keras.Variable(1.0)
    adopt(mirrored.extended.distribution.store, [v])
    value = v.value
    adopt(mirrored.extended.distribution.store, [v])
    assert v.value is value


def test_a_variable_without_a_value_is_adopted(mirrored):
    with keras.StatelessScope():
        v = keras.Variable(keras.initializers.Ones(), shape=(2,))
        adopt(mirrored.extended.distribution.store, [v])
    assert device_ids(v.value) == [0, 1]


@pytest.mark.parametrize("other", ["mirrored_2", CENTRAL, "one_device"])
def test_a_variable_of_another_strategy_is_refused(mirrored, other):
    with MATRIX[other]().scope():
        v = keras.Variable(1.0, name="theirs")
    match = "'theirs' belongs to another"
    with pytest.raises(rx.errors.MixedStrategies, match=match):
        mirrored.run(lambda: v.assign_add(1.0))
    with pytest.raises(rx.errors.MixedStrategies, match=match):
        mirrored.run(lambda: v + 1.0)
    assert float(v.value) == 1.0


def spec(**chosen):
    return VariableSpec("dense/kernel", (2,), **{"dtype": "float32", **chosen})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("synchronization", ["auto", "on_write", "on_read"])
def test_numbers_have_a_mean_however_they_are_synchronized(dtype, synchronization):
    check_variable(spec(synchronization=synchronization))
    check_variable(spec(dtype=dtype, aggregation="mean", synchronization=synchronization))


@pytest.mark.parametrize("name", strategy_params(replicas=(1, 2)))
def test_both_are_checked_when_the_variable_is_made(name):
    with MATRIX[name]().scope():
        for dtype in ("int32", "uint8", "bool"):
            with pytest.raises(ValueError, match=f"'number' of {dtype}"):
                keras.Variable(0, dtype=dtype, aggregation="mean", name="number")
        with pytest.raises(ValueError, match="mode is not supported"):
            keras.Variable(0.0, synchronization="none")


def test_both_are_checked_when_a_variable_is_adopted(mirrored):
    v = keras.Variable(0, dtype="int32", aggregation="mean")
    with pytest.raises(ValueError, match="aggregation='mean'"):
        mirrored.run(lambda: v.assign(v + 1))
    never = keras.Variable(0.0, synchronization="none")
    with pytest.raises(ValueError, match="mode is not supported"):
        mirrored.run(lambda: never.assign(never + 1.0))


def test_a_distribution_is_current_inside_its_block_only(mirrored):
    distribution = mirrored.extended.distribution
    assert _compat.distribution() is None
    with mirrored.scope():
        assert _compat.distribution() is distribution
        with with_distribution(None):
            assert _compat.distribution() is None
        assert _compat.distribution() is distribution
    assert _compat.distribution() is None
    with pytest.raises(KeyError, match="mine"), mirrored.scope():
        raise KeyError("mine")
    assert _compat.distribution() is None


WIDE = (32, 64)  # 2048 elements: divided


def divided():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"], shard_optimizer=True)


def specs(variables):
    return {v.name: v.value.sharding.spec for v in variables if v.shape == WIDE}


@pytest.mark.parametrize(
    ("optimizer", "names"),
    [
        (lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True), {"momentum", "average"}),
        (lambda: keras.optimizers.Adam(amsgrad=True), {"momentum", "velocity", "velocity_hat"}),
        (lambda: keras.optimizers.SGD(gradient_accumulation_steps=2), {"gradient_accumulator"}),
    ],
    ids=["average", "adam", "accumulator"],
)
def test_slots_are_divided_when_they_are_made(optimizer, names):
    with divided().scope():
        kernel, made = keras.Variable(jax.numpy.ones(WIDE)), optimizer()
        made.build([kernel])
    assert kernel.value.sharding.spec == P()
    found = specs(made.variables)
    assert {name.removeprefix(f"{kernel.path}_") for name in found} == names
    assert set(found.values()) == {P(None, "replica")}


def net(optimizer):
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64)])
    model.compile(optimizer, "mse")
    return model


def test_slots_made_outside_the_scope_are_divided_when_they_are_used():
    optimizer = keras.optimizers.Adam()
    strategy = divided()
    with strategy.scope():
        model = net("sgd")
    optimizer.build(model.trainable_variables)
    assert set(specs(optimizer.variables).values()) == {P()}
    adopt(strategy.extended.distribution.store, optimizer.variables)
    assert set(specs(optimizer.variables).values()) == {P(None, "replica")}
    assert strategy.extended.variable_created_in_scope(optimizer.variables[-1])


def test_what_an_optimizer_keeps_follows_its_variable():
    strategy = rx.ModelParallelStrategy(
        {".*kernel": (None, "model")}, model_parallel=2, devices=["CPU:0", "CPU:1"]
    )
    with strategy.scope():
        model = net(keras.optimizers.Adafactor())
        model.optimizer.build(model.trainable_variables)
    assert model.weights[0].value.sharding.spec == P(None, "model")
    kept = {v.shape: v.value.sharding.spec for v in model.optimizer.variables if v.ndim}
    assert kept[WIDE] == P(None, "model")
    assert set(kept.values()) == {P(), P(None, "model")}  # its rows and columns are whole


def test_other_variables_of_the_scope_are_no_slots():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], shard_optimizer=True)
    with strategy.scope():
        keras.optimizers.SGD(momentum=0.9).build([keras.Variable(jax.numpy.ones(WIDE))])
        after = keras.Variable(jax.numpy.ones(WIDE))
    assert after.value.sharding.spec == P()


def test_a_cleared_session_does_not_end_the_scope(two):
    inputs, store = keras.Input((2,)), two.extended.distribution.store
    with two.scope():
        keras.utils.clear_session(free_memory=False)
        functional = keras.Model(inputs, keras.layers.Dense(1)(inputs))
        sequential = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        functional.compile("sgd", "mse")
        sequential.compile("sgd", "mse")
    assert _compat.distribution() is None
    for model in (functional, sequential):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
        assert all(_compat.owner(variable) is store for variable in model.variables)


def test_a_thread_keeps_no_distribution_of_a_scope_that_a_model_was_made_in(two):
    def made():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        return model, _compat.distribution()

    with ThreadPoolExecutor(1) as thread:
        with two.scope():
            context = contextvars.copy_context()  # as `asyncio.to_thread` does
        thread.submit(context.run, made).result()
        model, distribution = thread.submit(made).result()
    assert _compat.strategy_of(model) is None
    assert distribution is None


def test_a_model_of_no_strategy_stays_so_in_a_scope(two):
    with two.scope(), with_distribution(None):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    assert _compat.strategy_of(model) is None
