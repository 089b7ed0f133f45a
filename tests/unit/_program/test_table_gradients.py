"""Gradients of tables as rows: the numbers of whole gradients, without whole gradients."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax._core.packing import sum_in_packs
from replicax._core.topology import AXIS, Topology
from replicax._cpu import kernels
from replicax._cpu.tables import _FIRSTS
from replicax._program.table_gradients import evaluate_with_slices, with_slices

from helpers import tuned

SIZE, WIDTH, ROWS = 100, 3, 8
TABLE = np.random.default_rng(0).normal(size=(SIZE, WIDTH)).astype("float32")
# 7 twice, also on one replica; 99 is the last; 200 has no row: nothing is added.
IDS = np.array([7, 0, 7, 99, 3, 7, 200, 50], "int32")
SCALES = np.arange(1, ROWS + 1, dtype="float32")


def gradient(table, ids, scales):
    """By hand: 2 · scale for each occurrence of an id."""

    def loss(table):
        return 2 * (jnp.take(table, ids, axis=0, fill_value=0.0) * scales[:, None]).sum()

    return jax.grad(loss)(table)


def whole_gradient():
    found = np.zeros_like(TABLE)
    for number, scale in zip(IDS, SCALES, strict=True):
        if number < SIZE:
            found[number] += 2 * scale
    return found


def sgd(table, ids, scales):
    return table - gradient(table, ids, scales) * 0.5


def mean_of_two(table, ids, scales):
    return table + -gradient(table, ids, scales) / 2 * jnp.float32(3)


def momentum(table, ids, scales):
    velocity = 0.9 * table - 0.5 * gradient(table, ids, scales)
    return table + velocity


def clipped(table, ids, scales):
    found = gradient(table, ids, scales)
    return table - found / jnp.sqrt((found * found).sum())


def nothing_else(table, ids, scales):
    return gradient(table, ids, scales)


G = whole_gradient()
STEPS = [
    (sgd, TABLE - 0.5 * G, 0),
    (mean_of_two, TABLE - 1.5 * G, 0),
    (momentum, 1.9 * TABLE - 0.5 * G, 0),
    (clipped, TABLE - G / np.sqrt((G * G).sum()), 1),
    (nothing_else, G, 1),
]


def operations(jaxpr):
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from operations(inner)


def written_wholly(jaxpr):
    """How many times rows were added to zeros: a whole gradient."""
    zeros = {
        equation.outvars[0]
        for equation in operations(jaxpr)
        if equation.primitive is lax.broadcast_in_dim_p
        and isinstance(equation.invars[0], jax.extend.core.Literal)
        and len(equation.outvars[0].aval.shape) == 2
        and equation.outvars[0].aval.shape[0] == SIZE
    }
    added = [e for e in operations(jaxpr) if e.primitive is lax.scatter_add_p]
    return sum(equation.invars[0] in zeros for equation in added)


def exchanged(jaxpr):
    names = ("psum", "all_gather")
    found = [e for e in operations(jaxpr) if e.primitive.name in names]
    return [sum(atom.aval.size for atom in equation.invars) for equation in found]


@pytest.mark.parametrize(("step", "expected", "wholes"), STEPS)
def test_rows_go_where_they_belong_without_a_whole_gradient(step, expected, wholes):
    program = jax.jit(with_slices(step, None, platform="cpu"))
    assert written_wholly(program.trace(TABLE, IDS, SCALES).jaxpr.jaxpr) == wholes
    np.testing.assert_allclose(program(TABLE, IDS, SCALES), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", [False, True])
def test_repeated_rows_of_many_tables_are_found_by_the_operations_of_one(kernel):
    draw = np.random.default_rng(1)
    sizes, widths = (100, 400, 90, 150), (3, 2, 3, 1)
    tables = [
        draw.normal(size=shape).astype("float32") for shape in zip(sizes, widths, strict=True)
    ]
    # Each with rows that repeat; some below and behind the table, which belong nowhere.
    ids = [draw.integers(-5, 8, 8).astype(kind) for kind in ("int32", "int16", "int32", "uint8")]
    ids[1][0], ids[2][3] = 399, 90

    def step(tables, ids, scales):
        def loss(tables):
            found = [t.at[i].get(mode="drop", fill_value=0, wrap_negative_indices=False)
                     for t, i in zip(tables, ids, strict=True)]  # fmt: skip
            return 2 * sum((one * scales[:, None]).sum() for one in found)

        gradients = jax.grad(loss)(tables)
        return [t - 0.5 * g for t, g in zip(tables, gradients, strict=True)]

    with tuned(tables=kernel):
        program = jax.jit(with_slices(step, None, platform="cpu"))
        found = operations(program.trace(tables, ids, SCALES).jaxpr.jaxpr)
    searches = sum(e.primitive is _FIRSTS for e in found)
    assert searches == (0 if kernel and kernels.are_there() else 1)
    for table, numbers, new in zip(tables, ids, program(tables, ids, SCALES), strict=True):
        expected = table.copy()  # the program may still read the table
        for number, scale in zip(numbers.tolist(), SCALES, strict=True):
            if 0 <= number < len(table):
                expected[number] -= scale
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-5)


def test_two_look_ups_of_one_table_are_added():
    def step(table, ids, scales):
        both = gradient(table, ids, scales) + gradient(table, ids[:4], scales[:4])
        return table - both

    expected = TABLE - G
    for number, scale in zip(IDS[:4], SCALES[:4], strict=True):
        expected[number] -= 2 * scale
    found = jax.jit(with_slices(step, None, platform="cpu"))(TABLE, IDS, SCALES)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def layouts():
    topology = Topology.local(["CPU:0", "CPU:1"])
    return topology, (topology.replicated, topology.split, topology.split)


@pytest.mark.parametrize(("step", "expected", "wholes"), STEPS)
def test_replicas_of_the_global_view_exchange_rows(step, expected, wholes):
    topology, inputs = layouts()
    program = jax.jit(
        with_slices(step, topology.mesh, platform="cpu"),
        in_shardings=inputs,
        out_shardings=topology.replicated,
    )
    # Of each replica: the indices and the rows, in one buffer.
    traced = program.trace(TABLE, IDS, SCALES)
    assert sorted(exchanged(traced.jaxpr.jaxpr)) == [ROWS // 2 * (1 + WIDTH)]
    np.testing.assert_allclose(program(TABLE, IDS, SCALES), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [7, 1])
def test_rows_that_the_replicas_do_not_divide_are_left_to_xla(rows):
    topology, _ = layouts()
    program = jax.jit(with_slices(sgd, topology.mesh, platform="cpu"))
    assert exchanged(program.trace(TABLE, IDS[:rows], SCALES[:rows]).jaxpr.jaxpr) == []
    expected = jax.jit(sgd)(TABLE, IDS[:rows], SCALES[:rows])
    found = program(TABLE, IDS[:rows], SCALES[:rows])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def in_replicas(step, size):
    """A step of replicas that add up their gradients."""
    topology, _ = layouts()
    shapes = (TABLE[:size], IDS[: ROWS // 2], SCALES[: ROWS // 2])
    closed = jax.make_jaxpr(step, axis_env=[(AXIS, 2)])(*shapes)
    split, whole = jax.P(AXIS), jax.P()
    mapped = jax.shard_map(
        lambda *args: evaluate_with_slices(closed, *args, platform="cpu", replicas=2),
        mesh=topology.mesh,
        in_specs=(whole, split, split),
        out_specs=whole,
        check_vma=False,
    )
    return jax.jit(mapped)


def summed(table, ids, scales):
    total, loss = lax.psum((gradient(table, ids, scales), scales.sum()), AXIS)
    return table - total * 0.5, loss


def test_replicas_that_add_up_gradients_exchange_rows():
    program = in_replicas(summed, SIZE)
    found = exchanged(program.trace(TABLE, IDS, SCALES).jaxpr.jaxpr)
    assert sorted(found) == [1, ROWS // 2 * (1 + WIDTH)]
    table, loss = program(TABLE, IDS, SCALES)
    np.testing.assert_allclose(table, TABLE - 0.5 * G, rtol=1e-5, atol=1e-6)
    assert loss == SCALES.sum()


@pytest.mark.parametrize("bytes_per_pack", [0, 4])
def test_rows_are_left_out_of_the_packs_of_what_is_added_up(bytes_per_pack):
    def step(table, ids, scales):
        parts = [gradient(table, ids, scales), scales.sum(), scales * 2]
        total, loss, doubled = sum_in_packs(parts, bytes_per_pack)
        return table - total * 0.5, loss, doubled

    program = in_replicas(step, SIZE)
    found = exchanged(program.trace(TABLE, IDS, SCALES).jaxpr.jaxpr)
    packs = [1 + ROWS // 2] if bytes_per_pack == 0 else [1, ROWS // 2]
    assert sorted(found) == sorted([*packs, ROWS // 2 * (1 + WIDTH)])
    table, loss, doubled = program(TABLE, IDS, SCALES)
    np.testing.assert_allclose(table, TABLE - 0.5 * G, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(loss, SCALES.sum())
    np.testing.assert_array_equal(doubled, 2 * (SCALES[:4] + SCALES[4:]))


def test_a_table_that_is_smaller_than_its_rows_is_added_up_whole():
    small = 10
    program = in_replicas(summed, small)
    found = exchanged(program.trace(TABLE[:small], IDS, SCALES).jaxpr.jaxpr)
    assert sum(found) == small * WIDTH + 1
    expected = sgd(TABLE[:small], IDS, SCALES)
    np.testing.assert_allclose(program(TABLE[:small], IDS, SCALES)[0], expected, rtol=1e-5)


def test_what_occurs_once_on_each_replica_may_occur_twice_on_all():
    def step(table, ids, scales):
        zeros = jnp.zeros_like(table)
        at = zeros.at[ids].add(scales[:, None], unique_indices=True, indices_are_sorted=True)
        return lax.psum(at, AXIS) + table

    ids = np.array([1, 2, 3, 4, 1, 2, 3, 4], "int32")
    (found,) = in_replicas(step, SIZE)(TABLE, ids, SCALES)
    expected = TABLE.copy()
    expected[1:5] += (SCALES[:4] + SCALES[4:])[:, None]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_sum_of_sums_counts_every_replica_twice():
    def step(table, ids, scales):
        return table - lax.psum(lax.psum(gradient(table, ids, scales), AXIS), AXIS)

    (found,) = in_replicas(step, SIZE)(TABLE, IDS, SCALES)
    np.testing.assert_allclose(found, TABLE - 2 * G, rtol=1e-5, atol=1e-6)


def test_a_gradient_may_be_added_up_twice_and_used_before():
    def step(table, ids, scales):
        own = gradient(table, ids, scales)
        once = table - lax.psum(own, AXIS)
        return once, once - 0.5 * lax.psum(own, AXIS), lax.all_gather(table - own, AXIS)

    once, again, each = in_replicas(step, SIZE)(TABLE, IDS, SCALES)
    np.testing.assert_allclose(once, TABLE - G, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(again, TABLE - 1.5 * G, rtol=1e-5, atol=1e-6)
    owns = [gradient(TABLE, IDS[half], SCALES[half]) for half in (slice(4), slice(4, 8))]
    np.testing.assert_allclose(each, [TABLE - own for own in owns], rtol=1e-5, atol=1e-6)


def test_what_many_occurrences_add_is_not_lost_to_rounding():
    count, size = 20_000, 60_000
    table, ids = np.full((size, 1), 0.05, "float32"), np.full(count, 3, "int32")

    def step(table, ids, scales):
        return table - gradient(table, ids, scales)

    program = jax.jit(with_slices(step, None, platform="cpu"))
    scales = np.full(count, 0.75e-9, "float32")  # each less than half of a unit in the last place
    assert count * 1 * 2 <= size
    found = np.asarray(program(table, ids, scales), "float64")[3, 0]
    np.testing.assert_allclose(found - np.float64(np.float32(0.05)), -3e-5, rtol=1e-2)


@pytest.mark.parametrize("made", ["int32", "number"])
def test_what_has_no_rows_of_fractions_is_made_whole(made):
    def step(x):
        if made == "number":
            return jnp.zeros(()).at[()].add(x.sum()) * jnp.zeros(()).at[()].add(1.0)
        return lax.div(jnp.zeros(50, "int32").at[jnp.array([3, 3])].add(3), jnp.int32(4))

    expected = jax.jit(step)(SCALES)
    np.testing.assert_array_equal(
        jax.jit(with_slices(step, None, platform="cpu"))(SCALES), expected
    )


def test_operations_keep_the_names_of_their_scopes():
    def step(table, ids, scales):
        with jax.named_scope("encoder"):
            return table * 2 - gradient(table, ids, scales)

    lowered = jax.jit(with_slices(step, None, platform="cpu")).trace(TABLE, IDS, SCALES).lower()
    assert "encoder" in lowered.as_text(debug_info=True)


@pytest.mark.parametrize("mesh", [False, True])
def test_a_step_is_traced_once(mesh):
    traced = []

    def step(x):
        traced.append(x)
        return x + 1

    topology, _ = layouts()
    assert (
        jax.jit(with_slices(step, topology.mesh if mesh else None, platform="cpu"))(SCALES)[0] == 2
    )
    assert len(traced) == 1
