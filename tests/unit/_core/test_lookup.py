"""Rows by id: of one table, of shards, of several ids per example, and through `lookup_rows`."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax.experimental import sparse

import replicax as rx
from replicax._core.errors import UsageError

SHARDS = [[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]], [[9.0, 10.0]]]
WHOLE = np.concatenate(SHARDS).astype(np.float32)
# Pair 26 of the semantics' list A: {(0, 0): 0, (0, 1): 3, (1, 0): 4, (2, 2): 1}.
TRIPLE = (jnp.array([[0, 0], [0, 1], [1, 0], [2, 2]]), jnp.array([0, 3, 4, 1]), (3, 3))
PADDED = jnp.array([[0, 3, -1], [4, -1, -1], [-1, -1, 1]])
BCOO = sparse.BCOO((TRIPLE[1], TRIPLE[0]), shape=(3, 3))
FORMS = {"triple": TRIPLE, "padded": PADDED, "bcoo": BCOO}


def tables():
    return {
        "array": jnp.asarray(WHOLE),
        "numpy": WHOLE,
        "variable": keras.Variable(WHOLE),
        "shards": [jnp.asarray(shard) for shard in SHARDS],
        "variables": [keras.Variable(shard) for shard in SHARDS],
    }


@pytest.fixture(params=list(tables()))
def table(request):
    return tables()[request.param]


class Elsewhere:
    """A table that answers itself, and what it was asked."""

    shape = WHOLE.shape

    def __init__(self):
        self.asked = []

    def lookup_rows(self, ids):
        self.asked.append(ids)
        return jnp.asarray(WHOLE)[ids]


def test_rows_are_looked_up(table):
    found = rx.nn.embedding_lookup(table, np.array([0, 3, 4]))
    np.testing.assert_array_equal(found, [[1, 2], [7, 8], [9, 10]])


def test_ids_may_have_any_shape(table):
    found = rx.nn.embedding_lookup(table, [[0, 4], [4, 2]])
    np.testing.assert_array_equal(found, WHOLE[[[0, 4], [4, 2]]])
    assert rx.nn.embedding_lookup(table, 3).tolist() == [7, 8]


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint32])
def test_an_id_that_is_not_there_gives_nan(table, kind):
    outside = [5, 100] if np.dtype(kind).kind == "u" else [5, 100, -1]
    if np.dtype(kind).itemsize == 8:
        outside.append(2**32)  # cut to 32 bits it would be row 0
    found = rx.nn.embedding_lookup(table, np.array([2, *outside], kind))
    np.testing.assert_array_equal(found[0], [5, 6])
    assert np.isnan(found[1:]).all()


def test_a_narrow_id_may_meet_a_long_table():
    long = jnp.arange(300.0)[:, None]
    assert rx.nn.embedding_lookup(long, np.array([127], np.int8)).tolist() == [[127]]


def test_only_rows_that_are_looked_up_have_a_gradient(table):
    arrays = jax.tree.map(jnp.asarray, table)

    def loss(params):
        return jnp.nansum(rx.nn.embedding_lookup(params, jnp.array([0, 3, 3, 9])))

    gradient = jax.tree.leaves(jax.jit(jax.grad(loss))(arrays))
    np.testing.assert_array_equal(
        np.concatenate(gradient), [[1, 1], [0, 0], [0, 0], [2, 2], [0, 0]]
    )


def test_long_rows_are_scaled_down():
    found = rx.nn.embedding_lookup(jnp.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), [0, 1, 2], 1.0)
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], rtol=1e-6)


def test_a_row_of_zeros_has_a_gradient_under_a_norm():
    gradient = jax.grad(lambda rows: rx.nn.embedding_lookup(rows, [0], 1.0).sum())
    assert gradient(jnp.zeros((1, 2))).tolist() == [[1, 1]]


def test_a_row_may_have_several_axes():
    cube = jnp.arange(8.0).reshape(2, 2, 2)
    assert rx.nn.embedding_lookup([cube[:1], cube[1:]], [1]).tolist() == [[[4, 5], [6, 7]]]
    # √(4² + 5² + 6² + 7²) = √126, over both axes
    clipped = rx.nn.embedding_lookup(cube, [1], max_norm=1.0)
    np.testing.assert_allclose(clipped, cube[1:] / np.sqrt(126), rtol=1e-6)


def test_a_table_that_is_elsewhere_answers_itself():
    elsewhere = Elsewhere()
    assert rx.nn.embedding_lookup(elsewhere, np.array([3, 0])).tolist() == [[7, 8], [1, 2]]
    assert elsewhere.asked[0].tolist() == [3, 0]


def test_a_shard_that_is_elsewhere_is_asked_for_its_own_rows():
    elsewhere = Elsewhere()
    found = rx.nn.embedding_lookup([jnp.zeros((2, 2)), elsewhere], np.array([1, 5]))
    assert found.tolist() == [[0, 0], [7, 8]]
    assert elsewhere.asked[0].tolist() == [-1, 3]


def test_nothing_is_asked_for_where_there_is_no_id():
    elsewhere = Elsewhere()
    rx.nn.embedding_lookup_sparse(elsewhere, jnp.array([[0, 7]]), padding_value=7)
    assert elsewhere.asked[0].tolist() == [[0, -1]]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("combiner", "expected"),
    [
        (None, [[4, 5], [9, 10], [3, 4]]),
        ("mean", [[4, 5], [9, 10], [3, 4]]),
        ("sum", [[8, 10], [9, 10], [3, 4]]),
        ("sqrtn", [[8 / np.sqrt(2), 10 / np.sqrt(2)], [9, 10], [3, 4]]),
    ],
)
def test_the_rows_of_an_example_are_combined(table, form, combiner, expected):
    found = rx.nn.embedding_lookup_sparse(table, FORMS[form], combiner=combiner)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


WEIGHTS = {
    "triple": (TRIPLE[0], jnp.array([1.0, 3.0, 2.0, 5.0]), (3, 3)),
    "values": jnp.array([1.0, 3.0, 2.0, 5.0]),
    "padded": jnp.array([[1.0, 3.0, 9.0], [2.0, 9.0, 9.0], [9.0, 9.0, 5.0]]),
    "bcoo": sparse.BCOO((jnp.array([1.0, 3.0, 2.0, 5.0]), TRIPLE[0]), shape=(3, 3)),
}


@pytest.mark.parametrize("form", WEIGHTS)
@pytest.mark.parametrize(
    ("combiner", "divisors"),
    [("mean", [4, 2, 5]), ("sum", [1, 1, 1]), ("sqrtn", [np.sqrt(10), 2, 5])],
)
def test_rows_are_weighted(form, combiner, divisors):
    # 1·[1, 2] + 3·[7, 8] = [22, 26]; 2·[9, 10]; 5·[3, 4]
    expected = np.array([[22, 26], [18, 20], [15, 20]]) / np.array(divisors)[:, None]
    ids = FORMS.get(form, TRIPLE)
    found = rx.nn.embedding_lookup_sparse(jnp.asarray(WHOLE), ids, WEIGHTS[form], combiner)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("combiner", ["mean", "sum", "sqrtn"])
def test_an_example_without_ids_is_zero_and_so_is_its_gradient(combiner):
    def loss(table):
        ids = jnp.array([[-1, -1], [1, -1]])
        return rx.nn.embedding_lookup_sparse(table, ids, combiner=combiner).sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(WHOLE))
    assert float(value) == 7
    np.testing.assert_array_equal(gradient, [[0, 0], [1, 1], [0, 0], [0, 0], [0, 0]])


def test_a_sparse_matrix_may_be_filled_up():
    # As `BCOO.fromdense(matrix, nse=5)` fills it: indices outside the shape.
    indices = jnp.concatenate([TRIPLE[0], jnp.array([[3, 3]])])
    filled = sparse.BCOO((jnp.array([0, 3, 4, 1, 0]), indices), shape=(3, 3))
    found = jax.jit(lambda ids: rx.nn.embedding_lookup_sparse(jnp.asarray(WHOLE), ids))(filled)
    np.testing.assert_allclose(found, [[4, 5], [9, 10], [3, 4]], rtol=1e-6)


def test_rows_are_scaled_before_they_are_combined():
    table = jnp.array([[3.0, 4.0], [0.3, 0.4]])
    found = rx.nn.embedding_lookup_sparse(table, jnp.array([[0, 1]]), combiner="sum", max_norm=1.0)
    np.testing.assert_allclose(found, [[0.9, 1.2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("int32", "float32")]
)
def test_sums_are_made_in_single_precision(dtype, expected):
    # 2049 is no number of either half precision: adding one by one would stop at 2048.
    ones = jnp.ones((1, 1), dtype)
    found = rx.nn.embedding_lookup_sparse(ones, jnp.zeros((1, 4096), int), combiner="sum")
    assert (found.dtype, float(found[0, 0])) == (expected, 4096)


def test_an_id_that_is_not_there_shows_in_its_example_only():
    found = rx.nn.embedding_lookup_sparse(jnp.asarray(WHOLE), jnp.array([[0, 9], [1, -1]]))
    assert np.isnan(found).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda t: rx.nn.embedding_lookup(t, [1.5]), "Ids must be integers"),
        (lambda t: rx.nn.embedding_lookup([], [1]), "Cannot look up rows in an empty list"),
        (
            lambda t: rx.nn.embedding_lookup_sparse(t, PADDED, combiner="max"),
            "`combiner` must be .*'max'",
        ),
        (lambda t: rx.nn.embedding_lookup_sparse(t, PADDED, jnp.ones(3)), "Weights of shape"),
        (lambda t: rx.nn.embedding_lookup_sparse(t, jnp.array([0, 1])), r"an array with 1 axes"),
        (
            lambda t: rx.nn.embedding_lookup_sparse(
                t, (jnp.ones(3, int), jnp.ones(3, int), (3, 3))
            ),
            r"indices of shape .* for ids of shape",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(call, said):
    with pytest.raises(UsageError, match=said):
        call(jnp.asarray(WHOLE))
