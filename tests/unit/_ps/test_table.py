"""A server's rows: gathered, updated, changed, saved and restored; in memory and on disk."""

from __future__ import annotations

import functools

import jax
import keras
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.rowwise import rowwise_optimizer
from replicax._ps.tables.table import Column, Rows, Table, zeros_on_disk

ROWS, DIM = 50, 3
VALUES = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)


@pytest.fixture(params=["in memory", "on disk"])
def table(request):
    column = Column((DIM,))
    if request.param == "in memory":
        made = Table.from_array(VALUES.copy())
    else:
        made = Table(Rows(zeros_on_disk((ROWS, DIM), "float32"), zeros_on_disk), column)
        made.assign(np.arange(ROWS), VALUES)
    return made


def whole(table):
    return table.gather(np.arange(table.rows))


def sgd(values, gradients, slots, step):
    return values - gradients, slots


def test_rows_are_gathered_in_any_order_and_repeatedly(table):
    rows = np.array([49, 0, 3, 0])
    gathered = table.gather(rows)
    np.testing.assert_array_equal(gathered, VALUES[rows])
    gathered[:] = 0
    np.testing.assert_array_equal(table.gather(rows), VALUES[rows])


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 50])
def test_an_update_is_that_of_its_rows(table, count):
    rows = np.random.default_rng(0).permutation(ROWS)[:count]
    gradients = np.ones((count, DIM), np.float32)
    table.update(rows, gradients, sgd)
    expected = VALUES.copy()
    expected[rows] -= 1
    np.testing.assert_array_equal(whole(table), expected)


def test_the_optimizer_meets_few_shapes_and_its_padding_is_dropped(table):
    shapes = set()

    def spoils_padding(values, gradients, slots, step):
        shapes.add(values.shape[0])
        assert values.shape == gradients.shape
        real = gradients[:, :1] != 0
        return np.where(real, values - gradients, np.nan), slots

    for count in range(1, ROWS):
        table.update(np.arange(count), np.ones((count, DIM), np.float32), spoils_padding)
    assert shapes == {16, 32, 64}
    np.testing.assert_array_equal(
        whole(table), VALUES - np.arange(ROWS - 1, -1, -1, dtype=np.float32)[:, None]
    )


def test_keras_runs_on_the_rows(table):
    optimizer = keras.optimizers.Adam(0.1)
    optimizer.build([keras.Variable(np.zeros((16, DIM), np.float32))])
    table.use_slots([Column((DIM,)), Column((DIM,))])

    @jax.jit
    def apply(values, gradients, slots, step):
        state = [step, np.float32(0.1), *slots]
        (values,), state = optimizer.stateless_apply(state, [gradients], [values])
        return values, state[2:]

    rows = np.array([4, 40, 9])
    gradients = np.random.default_rng(0).standard_normal((5, 3, DIM)).astype(np.float32)
    local = keras.Variable(VALUES[rows])
    reference = keras.optimizers.Adam(0.1)
    for gradient in gradients:
        table.update(rows, gradient, apply)
        reference.apply([gradient], [local])
    np.testing.assert_allclose(table.gather(rows), local.numpy(), atol=1e-6)
    untouched = np.delete(np.arange(ROWS), rows)
    np.testing.assert_array_equal(table.gather(untouched), VALUES[untouched])


def test_a_rowwise_optimizer_goes_by_blocks():
    wide = Table.from_array(np.zeros((100, 1 << 14), np.float32))
    counts = []

    def apply(values, gradients, slots, step):
        counts.append(len(values))
        return sgd(values, gradients, slots, step)

    wide.update(np.arange(10), np.ones((10, 1 << 14), np.float32), apply, rowwise=True)
    assert counts == [4, 4, 2]
    assert whole(wide).sum() == -10 * (1 << 14)


def test_rows_that_are_updated_late_begin_with_the_first_slots(table):
    adagrad = keras.optimizers.Adagrad(1.0, initial_accumulator_value=0.5, epsilon=0.0)
    rowwise = rowwise_optimizer("Adagrad", adagrad.get_config())
    table.use_slots([Column((DIM,), initial=slot) for slot in rowwise.slots])
    apply = functools.partial(rowwise, learning_rate=1.0)
    gradients = np.ones((2, DIM), np.float32)
    for rows in ([1, 2], [2, 3]):
        table.update(np.array(rows), gradients, apply, rowwise=True)
    # 0.5 + 1 once or twice: steps of 1/√1.5 and 1/√2.5
    once, twice = 1 / np.sqrt(1.5), 1 / np.sqrt(1.5) + 1 / np.sqrt(2.5)
    moved = (VALUES - whole(table))[:5, 0]
    np.testing.assert_allclose(moved, [0, once, twice, once, 0], atol=1e-5)
    slots = table.export()["slot_0"]
    np.testing.assert_allclose(slots[:5, 0], [0.5, 1.5, 2.5, 1.5, 0.5])


def test_slots_stay_until_the_optimizer_is_another(table):
    def count(values, gradients, slots, step):
        return values, [slots[0] + 1]

    table.use_slots([Column((DIM,))])
    table.update(np.array([1]), np.ones((1, DIM), np.float32), count)
    table.use_slots([Column((DIM,))])
    assert table.export(np.array([1]))["slot_0"].tolist() == [[1] * DIM]
    table.use_slots([Column((DIM,), initial=0.5)])
    assert table.export(np.array([1]))["slot_0"].tolist() == [[0.5] * DIM]


def test_rows_that_are_given_anew_begin_with_new_slots(table):
    table.use_slots([Column((DIM,), initial=3.0)])
    rows = np.array([1, 2])
    table.update(rows, np.ones((2, DIM)), lambda v, g, slots, step: (v, [slots[0] + 1]))
    table.assign(np.array([1]), np.zeros((1, DIM)), anew=True)
    table.assign(np.array([2]), np.zeros((1, DIM)))
    assert table.export(rows)["slot_0"][:, 0].tolist() == [3, 4]


def test_steps_are_counted_or_given(table):
    seen = []

    def apply(values, gradients, slots, step):
        seen.append(step)
        return values, slots

    one, none = (np.array([1]), np.ones((1, DIM))), (np.array([], int), np.ones((0, DIM)))
    table.update(*one, apply)
    table.update(*none, apply)  # a step of which this server has no rows
    table.update(*one, apply)
    table.update(*one, apply, step=7)
    table.update(*one, apply)
    assert (seen, table.step) == ([0, 2, 7, 8], 9)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", [[3, 5], [8, 8]]),
        ("sub", [[-1, -1], [-2, 0]]),
        ("mul", [[2, 6], [12, 12]]),
        ("div", [[0.5, 2 / 3], [0.75, 4 / 3]]),
        ("max", [[2, 3], [4, 4]]),
        ("min", [[1, 2], [1, 1]]),
        ("update", [[2, 3], [1, 3]]),
    ],
)
def test_values_are_scattered_one_after_another(operation, expected):
    table = Table.from_array(np.array([[1, 2], [9, 9], [3, 4]], np.float32))
    table.scatter(operation, np.array([2, 0, 2]), np.array([[4, 1], [2, 3], [1, 3]], np.float32))
    np.testing.assert_allclose(table.gather(np.array([0, 2])), expected, rtol=1e-6)
    assert table.gather(np.array([1])).tolist() == [[9, 9]]


def test_an_export_restores_the_table(table):
    slots = [Column((DIM,), initial=0.1)]
    adagrad = rowwise_optimizer("Adagrad", keras.optimizers.Adagrad().get_config())
    apply = functools.partial(adagrad, learning_rate=0.1)
    table.use_slots(slots)
    random = np.random.default_rng(0)
    for _ in range(3):
        rows = random.choice(ROWS, 5, replace=False)
        table.update(rows, random.standard_normal((5, DIM)).astype(np.float32), apply)
    again = Table.from_array(np.zeros_like(VALUES))
    again.use_slots(slots)
    again.load(table.export())
    expected, restored = table.export(), again.export()
    for name in ("rows", "values", "slot_0", "step"):
        np.testing.assert_array_equal(restored[name], expected[name])


def test_an_export_is_a_copy(table):
    state = table.export()
    table.assign(np.array([0]), np.full((1, DIM), -1))
    np.testing.assert_array_equal(state["values"], VALUES)


def test_values_alone_may_be_restored(table):
    table.use_slots([Column((DIM,), initial=0.1)])
    state = {name: value for name, value in table.export().items() if name != "slot_0"}
    table.update(
        np.array([1]), np.ones((1, DIM)), lambda v, g, slots, step: (v - g, [slots[0] + 1])
    )
    table.load(state)
    np.testing.assert_array_equal(whole(table), VALUES)
    np.testing.assert_allclose(table.export()["slot_0"], 0.1)


def test_the_slots_of_another_optimizer_are_refused(table):
    table.use_slots([Column((DIM,))])
    state = table.export()
    table.use_slots([Column((DIM,)), Column((DIM,))])
    with pytest.raises(UsageError, match=" 1 .*slots.* 2"):
        table.load(state)


def test_there_may_be_more_rows(table):
    table.use_slots([Column((DIM,), initial=0.1)])
    table.update(np.array([1]), np.ones((1, DIM)), sgd)
    table.grow(80)
    table.assign(np.array([79]), np.ones((1, DIM)))
    assert table.gather(np.array([79, 1])).tolist() == [[1, 1, 1], [2, 3, 4]]


@pytest.mark.parametrize("rows", [[ROWS], [-1], [0, 1000]])
def test_a_row_that_is_not_here_is_an_error(table, rows):
    for call in (
        lambda: table.gather(np.array(rows)),
        lambda: table.update(np.array(rows), np.zeros((len(rows), DIM)), sgd),
        lambda: table.assign(np.array(rows), np.zeros((len(rows), DIM))),
    ):
        with pytest.raises(IndexError, match="0 to 49"):
            call()


def test_each_row_has_one_gradient(table):
    with pytest.raises(UsageError, match="2 rows.*3 gradients"):
        table.update(np.array([0, 1]), np.zeros((3, DIM)), sgd)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32"])
def test_rows_may_be_of_any_type(dtype):
    dtype = jax.numpy.dtype(dtype)
    table = Table(Rows(np.zeros((5, 2), dtype)), Column((2,), dtype))
    table.update(np.array([1]), np.ones((1, 2), dtype), sgd)
    assert table.gather(np.array([1])).tolist() == [[-1, -1]]
    assert table.gather(np.array([1])).dtype == dtype
