"""Rows of tables by the kernel: JAX's own numbers to the last bit, and where the kernel is used."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax._cpu import kernels, tables
from replicax._cpu.programs import with_rules
from replicax._cpu.tables import add_sums, first_places
from replicax._program.table_gradients import with_slices

from helpers import tuned

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="the kernels are not built")

# Rows of one number, of less than a vector, of some and a part, with two axes; one thread and more.
ROWS = [((50,), 5000), ((50, 3), 2000), ((999, 40), 300), ((70, 5, 8), (40, 9)), ((9, 32), 12_000)]


def drawn(shape, ids):
    """A table, indices of which some are not in it, and as many rows; zeros of both signs, too."""
    draw = np.random.default_rng(len(shape))
    numbers = np.array([-0.0, 0.0, 1e30, -1e-3, 1 / 3], "float32")
    ids = np.r_[draw.integers(-shape[0] - 9, shape[0] + 9, ids)].astype("int32")
    ids.flat[:3] = -(2**31), 2**31 - 1, shape[0]
    table = draw.choice(numbers, shape) + draw.normal(size=shape).astype("float32") * (
        ids.flat[4] % 2
    )
    rows = draw.choice(numbers, (*ids.shape, *shape[1:]))
    return table.astype("float32"), ids, rows


def bits(fn, *arrays, tables):
    with tuned(tables=tables):
        results = jax.jit(with_rules(lambda *own: fn(*own)))(*arrays)
    return [np.asarray(one).view("int32") for one in jax.tree.leaves(results)]


def is_by_kernel(fn, *arrays, name="@rx_"):
    return name in jax.jit(with_rules(lambda *own: fn(*own))).lower(*arrays).as_text()


def equals_stock(fn, *arrays):
    stock = bits(fn, *arrays, tables=False)
    jax.tree.map(np.testing.assert_array_equal, bits(fn, *arrays, tables=True), stock)


@pytest.mark.parametrize(("shape", "ids"), ROWS)
@pytest.mark.parametrize(
    "how",
    [{"mode": "fill"}, {"mode": "fill", "fill_value": -2.5}, {"mode": "clip"},
     {"mode": "promise_in_bounds"}],
)  # fmt: skip
def test_rows_are_looked_up(shape, ids, how):
    table, ids, _ = drawn(shape, ids)

    def look_up(table, ids):
        return table.at[ids].get(**how), jnp.take(table, ids, axis=0), table[ids]

    assert is_by_kernel(look_up, table, ids, name=kernels.LOOK_UP)
    equals_stock(look_up, table, ids)


@pytest.mark.parametrize(("shape", "ids"), ROWS)
@pytest.mark.parametrize("mode", ["drop", "clip", "promise_in_bounds"])
def test_rows_are_added_one_by_one(shape, ids, mode):
    arrays = drawn(shape, ids)

    def add(table, ids, rows):
        return table.at[ids].add(rows, mode=mode), jnp.zeros_like(table).at[ids].add(rows)

    assert is_by_kernel(add, *arrays, name=kernels.ADD_ROWS)
    equals_stock(add, *arrays)


@pytest.mark.parametrize(("shape", "ids"), ROWS)
@pytest.mark.parametrize("subtracts", [False, True])
def test_sums_of_rows_are_added(shape, ids, subtracts):
    table, ids, rows = drawn(shape, ids)
    add = functools.partial(add_sums, subtracts=subtracts)
    arrays = table, ids[..., None], rows
    assert is_by_kernel(add, *arrays, name=kernels.ADD_SUMS)
    formula = functools.partial(tables._add_sums, subtracts=subtracts)
    expected = bits(formula, *arrays, tables=False)
    jax.tree.map(np.testing.assert_array_equal, bits(add, *arrays, tables=True), expected)


@pytest.mark.parametrize(("size", "count"), [(1, 9), (40, 100), (2**31 - 1, 70_000)])
def test_first_places(size, count):
    draw = np.random.default_rng(count)
    indices = draw.integers(0, min(size, 50_000) + 1, count).astype("int32") * (size // 50_000 or 1)
    indices[3] = size  # nowhere
    find = functools.partial(first_places, size=size)
    assert is_by_kernel(find, indices, name=kernels.FIRST_ROWS)
    _, firsts, inverse = np.unique(indices, return_index=True, return_inverse=True)
    expected = np.where(indices < size, firsts[inverse], count)
    np.testing.assert_array_equal(jax.jit(with_rules(find))(indices), expected)
    if size < 2**31 - 1:
        with tuned(tables=False):
            np.testing.assert_array_equal(jax.jit(with_rules(lambda i: find(i)))(indices), expected)
    of_two = (
        jax.vmap(find)(np.stack([indices[:5], indices[5:10]])) if size < 100 and count > 9 else ()
    )
    for part, own in zip((indices[:5], indices[5:10]), of_two, strict=False):
        np.testing.assert_array_equal(own, find(jnp.asarray(part)))


@pytest.mark.parametrize(("count", "by_kernel"), [(2**29, True), (2**29 + 1, False)])
def test_first_places_of_more_than_the_kernel_can_number(count, by_kernel):
    indices = jax.ShapeDtypeStruct((count,), np.int32)
    find = functools.partial(first_places, size=5)
    assert is_by_kernel(find, indices, name=kernels.FIRST_ROWS) == by_kernel


def test_without_a_program_around_it():
    table, ids, rows = drawn((30, 4), 50)
    by_itself = functools.partial(add_sums, subtracts=True)
    arrays = [jnp.asarray(one) for one in (table, ids[:, None], rows)]
    with jax.disable_jit():
        found = by_itself(*arrays), first_places(jnp.array([4, 9, 4]), 9)
    np.testing.assert_allclose(found[0], by_itself(*arrays), rtol=1e-6)
    np.testing.assert_array_equal(found[1], [0, 3, 0])


def sgd(tables, ids, scales):
    """A step for tables whose rows are put side by side."""

    def loss(tables):
        rows = [jnp.take(table, ids[:, k], axis=0) for k, table in enumerate(tables)]
        return (jnp.concatenate([*rows, scales], axis=1) * scales[:, :1]).sum()

    gradients = jax.grad(loss)(tables)
    return [table - 0.5 * gradient for table, gradient in zip(tables, gradients, strict=True)]


def for_sgd():
    draw = np.random.default_rng(0)
    tables = [draw.normal(size=shape).astype("float32") for shape in ((9, 2), (500, 5), (99, 17))]
    ids = draw.integers(-3, (9, 500, 101), (40, 3)).astype("int32")
    return tables, ids, draw.normal(size=(40, 2)).astype("float32")


def test_a_step_makes_no_gradient_whole():
    tables, ids, scales = for_sgd()
    step = with_slices(sgd, None, platform="cpu")
    text = jax.jit(with_rules(step)).lower(tables, ids, scales).as_text()
    assert text.count(f"@{kernels.ADD_SUMS}(") == 3
    assert "scatter" not in text
    news = jax.jit(with_rules(step))(tables, ids, scales)
    for k, table in enumerate(tables):
        expected, size = table.astype("float64"), len(table)
        for number, scale in zip(ids[:, k], scales[:, 0], strict=True):
            if -size <= number < size:
                expected[number] -= 0.5 * scale
        np.testing.assert_allclose(news[k], expected, rtol=1e-5, atol=1e-5)


def test_columns_of_one_array_are_parted():
    def step(tables, ids, scales):
        parts = jnp.split(jnp.concatenate([tables[2], tables[2] * 2], axis=1), 2, axis=1)
        return [*sgd(tables, ids, scales), parts[1] - parts[0] * 3]

    arrays = for_sgd()
    found = jax.jit(with_rules(with_slices(step, None, platform="cpu")))(*arrays)
    np.testing.assert_allclose(found[3], arrays[0][2] * -1, rtol=1e-5)


def test_changes_of_rows():
    table, ids, rows = drawn((30, 4), 50)

    def step(table, ids, rows):
        whole = jnp.zeros_like(table).at[ids].add(rows, mode="drop")
        halves = whole * 0.5
        return table + halves * 3.0, table - -(halves / 4.0), halves

    found = jax.jit(with_rules(with_slices(step, None, platform="cpu")))(table, ids, rows)
    for ours, own in zip(found, step(table, ids, rows), strict=True):
        np.testing.assert_allclose(ours, own, rtol=1e-5)


def test_transformations_of_jax():
    table, ids, rows = drawn((60, 16), 512)
    equals_stock(jax.vmap(lambda ids: jnp.take(table, ids, axis=0)), ids.reshape(4, 128))
    several = jnp.stack([table, table + 1])
    equals_stock(jax.vmap(lambda one: one.at[ids].add(rows)), several)
    equals_stock(
        jax.grad(lambda table: (jnp.take(table, ids, axis=0, fill_value=0) ** 3).sum()), table
    )

    def added(table, rows):
        return add_sums(table, ids[:, None], rows, subtracts=True)

    formula = functools.partial(tables._add_sums, subtracts=True)
    expected = jax.jvp(lambda t, r: formula(t, ids[:, None], r), (table, rows), (rows[:60], rows))
    found = jax.jit(with_rules(lambda *own: jax.jvp(added, own, (rows[:60], rows))))(table, rows)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    of_two = jax.jit(with_rules(jax.vmap(added, (0, None))))(several, rows)
    np.testing.assert_array_equal(of_two[0], added(table, rows))


@pytest.mark.parametrize(
    ("fn", "ids"),
    [
        (lambda t, i: jnp.take(t, i, axis=1), np.arange(60)),  # columns
        (lambda t, i: jnp.take(t, i, axis=0), np.arange(20)),  # few
        (lambda t, i: jnp.take(t.astype("bfloat16"), i, axis=0), np.arange(512)),
        (lambda t, i: lax.dynamic_slice(t, (i[0], 0), (64, 64)), np.arange(2)),
        (lambda t, i: t.at[i].multiply(2.0), np.arange(512)),
        (lambda t, i: t[i, i], np.arange(5000)),  # numbers
        (lambda t, i: jnp.take(t, i[:0], axis=0), np.arange(2)),  # none
    ],
)
def test_others_are_left_to_xla(fn, ids):
    table = drawn((64, 64), 5)[0]
    assert not is_by_kernel(fn, table, ids.astype("int32"))


def test_each_device_its_rows():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("rows",))
    table, ids, rows = drawn((70, 16), 1024)
    split, whole = PartitionSpec("rows"), PartitionSpec()

    def work(table, ids, rows):
        found = jnp.take(table, ids, axis=0, mode="clip")
        return found, lax.psum(add_sums(table, ids[:, None], rows, subtracts=False), "rows")

    # The sums of each device's rows are its own, which JAX has to know.
    alone = jax.shard_map(
        lambda *args: add_sums(*args, subtracts=False),
        **{"mesh": mesh, "in_specs": (whole, split, split), "out_specs": whole},
    )
    with pytest.raises(ValueError, match="out_specs"):
        jax.eval_shape(alone, table, ids[:, None], rows)
    on_each = jax.shard_map(
        work, mesh=mesh, in_specs=(whole, split, split), out_specs=(split, whole)
    )
    assert is_by_kernel(on_each, table, ids, rows, name=kernels.LOOK_UP)
    assert is_by_kernel(on_each, table, ids, rows, name=kernels.ADD_SUMS)
    found, sums = jax.jit(with_rules(on_each))(table, ids, rows)
    np.testing.assert_array_equal(found, table[np.clip(ids, 0, 69)])
    formula = functools.partial(tables._add_sums, subtracts=False)
    parts = slice(512), slice(512, 1024)
    halves = [formula(jnp.asarray(table), ids[p, None], rows[p]) for p in parts]
    np.testing.assert_allclose(sums, halves[0] + halves[1], rtol=1e-6)
    divided = jax.device_put(ids, NamedSharding(mesh, split))
    assert not is_by_kernel(lambda t, i: jnp.take(t, i, axis=0), table, divided)


def test_neither_exported_nor_switched_off():
    tables, ids, scales = for_sgd()
    by_rows = with_rules(with_slices(sgd, None, platform="cpu"))
    exported = jax.export.export(jax.jit(by_rows))(tables, ids, scales)
    assert "@rx_" not in exported.mlir_module()
    expected = jax.jit(by_rows)(tables, ids, scales)
    found = exported.call(tables, ids, scales)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)
    with tuned(tables=False):
        assert not is_by_kernel(with_slices(sgd, None, platform="cpu"), tables, ids, scales)
