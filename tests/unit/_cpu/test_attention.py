"""Attention by the kernel: JAX's numbers, with all of its transformations; where it is used."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import replicax as rx
from replicax._cpu import attention as operation
from replicax._cpu import kernels
from replicax._keras import operations

operations.install()
pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="the kernels are not built")


@pytest.fixture(autouse=True)
def one_device(monkeypatch):
    """As in a program on a machine with one device: the tests' process has more."""
    monkeypatch.setattr(jax, "device_count", lambda: 1)


def drawn(*shapes):
    rng = np.random.default_rng(5)
    return [rng.normal(size=shape).astype("float32") for shape in shapes]


def attended(*arrays, **options):
    return keras.ops.dot_product_attention(*arrays, **options)


def both(function, *arrays):
    """What a function that attends gives with the kernel, and as JAX computes it."""
    jax.clear_caches()  # traces that the function keeps
    with rx.config.cpu_tuning(True):
        assert "replicax_attention" in str(jax.make_jaxpr(function)(*arrays))
        ours = function(*arrays)
    jax.clear_caches()
    with rx.config.cpu_tuning(False):
        assert "replicax_attention" not in str(jax.make_jaxpr(function)(*arrays))
        return ours, function(*arrays)


def close(ours, stock):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), ours, stock)


def test_without_a_program_around_it():
    arrays = drawn(*[(2, 5, 3, 4)] * 3)

    def function(*arrays):
        with jax.disable_jit():
            return jax.vjp(attended, *arrays)[1](jnp.ones_like(arrays[0]))

    close(*both(function, *arrays))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("rows", "positions", "seen", "heads", "width"),
    [(2, 5, 7, 3, 5), (1, 1, 1, 1, 1), (2, 300, 130, 1, 40), (3, 16, 32, 2, 16), (2, 9, 4, 2, 17)],
)
def test_result_and_gradients(causal, rows, positions, seen, heads, width):
    shapes = [(rows, positions, heads, width), *[(rows, seen, heads, width)] * 2]
    *arrays, given = drawn(*shapes, shapes[0])

    def function(*arrays):
        result, back = jax.vjp(lambda *x: attended(*x, is_causal=causal, scale=0.7), *arrays)
        return result, *back(jnp.asarray(given))

    close(*both(function, *arrays))


def test_attention_by_hand():
    query, key = np.ones((1, 1, 1, 1), "float32"), np.zeros((1, 2, 1, 1), "float32")
    key[0, 1] = np.log(3)  # weights of 1/4 and 3/4
    value = np.array([2, 6], "float32").reshape(1, 2, 1, 1)
    ours, _ = both(lambda *arrays: attended(*arrays, scale=1), query, key, value)
    np.testing.assert_allclose(ours.ravel(), [5], rtol=1e-6)


def test_what_is_hidden_weighs_nothing():
    query, key, value = np.ones((3, 1, 20, 1, 1), "float32")
    value[0, 1:] = 1e38  # a weight of the least number there is would show
    ours, _ = both(lambda *arrays: attended(*arrays, is_causal=True), query, key, value)
    assert ours[0, 0].item() == 1


SQUARES = (3, 6, 2, 4)


def squares(*arrays):
    return (jnp.sin(attended(*arrays)) * attended(*arrays)).sum()


def squares_of_gradients(*arrays):
    return sum((one**2).sum() for one in jax.grad(squares, (0, 1, 2))(*arrays))


TRANSFORMED = {
    "jit": jax.jit(lambda *x: jax.grad(squares, (0, 1, 2))(*x)),
    "jvp": lambda *x: jax.jvp(attended, x, x),
    "gradient of gradients": jax.grad(squares_of_gradients, (0, 1, 2)),
    "hessian": lambda *x: jax.jacfwd(jax.grad(squares))(*x),
    "one gradient of three": jax.grad(squares, 1),
    "remat": jax.grad(jax.checkpoint(squares), (0, 1, 2)),
    "vmap": lambda q, k, v: jax.vmap(jax.grad(squares, (0, 1, 2)), (1, None, None))(
        jnp.stack([q, 2 * q], 1), k, v
    ),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations(name):
    close(*both(TRANSFORMED[name], *map(jnp.asarray, drawn(*[SQUARES] * 3))))


@pytest.mark.parametrize("what", [np.nan, np.inf])
def test_what_is_no_number_stays_in_its_row(what):
    query, key, value = drawn(*[SQUARES] * 3)
    query[0, 1, 0, 0] = what
    ours, stock = both(attended, query, key, value)
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(stock))
    assert np.isnan(ours[0, 1, 0]).all()
    assert np.isnan(ours).sum() == 4


def test_products_far_apart():
    query, key, value = (array * 100 for array in drawn(*[SQUARES] * 3))
    close(*both(lambda *x: attended(*x) / 100, query, key, value))


def text(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text()


@pytest.mark.parametrize("checked", [True, False])
def test_each_device_its_rows(checked):
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("rows",))
    query, key = map(jnp.asarray, drawn((4, 6, 2, 4), (1, 5, 2, 4)))

    def on_each(query, key):
        keys = jnp.broadcast_to(key, (2, *key.shape[1:]))
        result = attended(query, keys, keys)
        return result, jax.grad(lambda q: (attended(q, keys, keys) ** 2).sum())(query)

    rows = PartitionSpec("rows")
    mapped = jax.shard_map(
        on_each, mesh=mesh, in_specs=(rows, PartitionSpec()), out_specs=rows, check_vma=checked
    )
    assert "rx_attention" in text(mapped, query, key)
    close(*both(mapped, query, key))


@pytest.mark.parametrize("devices", [1, 2])
def test_replicas_use_it(devices, monkeypatch):
    monkeypatch.undo()
    called = []

    def noted(name, results, arrays, numbers):
        called.append((name, arrays[0].shape))
        return own(name, results, arrays, numbers)

    own = operation._called
    monkeypatch.setattr(operation, "_called", noted)
    query, key, value = drawn(*[(4, 6, 2, 4)] * 3)
    strategy = rx.MirroredStrategy([f"CPU:{number}" for number in range(devices)])

    def step(*arrays):
        return jax.grad(lambda *x: (attended(*x) ** 2).sum(), (0, 1, 2))(*arrays)

    (rows,) = strategy.experimental_distribute_dataset([(query, key, value)])
    found = strategy.run(step, args=rows)
    found = [np.concatenate(strategy.experimental_local_results(one)) for one in found]
    rows_of_one = (4 // devices, 6, 2, 4)
    assert called == [(kernels.ATTENTION, rows_of_one), (kernels.ATTENTION_GRADIENT, rows_of_one)]
    with rx.config.cpu_tuning(False):
        close(found, list(step(query, key, value)))


def test_programs_that_are_divided_or_exported_are_without_it():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("rows",))
    arrays = [jnp.asarray(array) for array in drawn(*[(4, 6, 2, 4)] * 3)]
    divided = [
        jax.device_put(array, NamedSharding(mesh, PartitionSpec("rows"))) for array in arrays
    ]
    assert "rx_attention" in text(attended, *arrays)
    assert "rx_attention" not in text(attended, *divided)
    close(jax.jit(attended)(*divided), attended(*arrays))
    assert "rx_attention" not in jax.export.export(jax.jit(attended))(*arrays).mlir_module()


def test_programs_that_are_exported_for_this_machine_are_with_it():
    arrays = [jnp.asarray(array) for array in drawn(*[(4, 6, 2, 4)] * 3)]

    def exported(stays):
        # A new function each time: JAX keeps what it has lowered.
        with operation.on_this_machine(stays) as allowed:
            fn = jax.jit(lambda *x: attended(*x))
            return jax.export.export(fn, disabled_checks=allowed)(*arrays)

    assert "rx_attention" not in exported(False).mlir_module()
    assert "rx_attention" in exported(True).mlir_module()
    there = jax.export.deserialize(exported(True).serialize())
    with rx.config.cpu_tuning(False):
        close(jax.jit(there.call)(*arrays), attended(*arrays))


def test_unknown_programs_of_several_devices_keep_the_operations_of_jax(monkeypatch):
    monkeypatch.undo()
    arrays = drawn(*[SQUARES] * 3)
    assert jax.device_count() > 1
    program = jax.make_jaxpr(lambda *arrays: attended(*arrays))(*arrays)
    assert "replicax_attention" not in str(program)


@pytest.mark.parametrize("shape", [(3, 2, 0, 2, 4), (0, 2, 4, 2, 4)])
def test_nothing_to_attend_to_is_mapped_over_as_well(shape):
    x = jnp.zeros(shape)
    assert jax.vmap(lambda q: keras.ops.dot_product_attention(q, q, q))(x).shape == shape
