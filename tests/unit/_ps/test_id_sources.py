"""Where ids come from: found in a trace, and taken from the data without losing bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.programs import check_narrow, source_of, taken, without

DATA = np.arange(12).reshape(4, 3) + 10**12


def source(fn, *, kept=None):
    other = jax.ShapeDtypeStruct((2,), "float32")
    ids = jax.ShapeDtypeStruct(DATA.shape, "int32")
    return source_of(jax.make_jaxpr(fn)(other, ids, other), 0, kept=kept or range(1, 3))


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: x, DATA),
        (lambda x: x[1:, 2], DATA[1:, 2]),
        (lambda x: x.T.reshape(2, 6)[:, ::2], DATA.T.reshape(2, 6)[:, ::2]),
        (lambda x: jnp.squeeze(x[:, :1])[None], DATA[:, 0][None]),
        (lambda x: x.astype("uint32"), DATA),
        (jax.jit(lambda x: jnp.ravel(x)), DATA.ravel()),
        (lambda x: jnp.expand_dims(x, -1), DATA[..., None]),
    ],
)
def test_ids_that_stand_in_the_data_are_taken_from_there(fn, expected):
    found = source(lambda a, x, b: fn(x))
    assert found is not None
    np.testing.assert_array_equal(taken(found, [DATA]), expected)


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, x, b: x + 1,
        lambda a, x, b: jnp.where(x > 0, x, -1),
        lambda a, x, b: x.astype("int8"),  # loses bits on purpose
        lambda a, x, b: jax.jit(lambda y: y * 2)(x),
        lambda a, x, b: jnp.broadcast_to(x[0, 0], (4,)),
        lambda a, x, b: jnp.arange(3),
        lambda a, x, b: a.astype("int32"),
    ],
)
def test_ids_that_are_computed_are_left_to_code(fn):
    assert source(fn) is None


def test_what_is_no_data_is_no_source():
    assert source(lambda a, x, b: x, kept=range(2, 3)) is None


def test_code_gets_no_ids_that_it_would_cut():
    check_narrow(np.array([2**31 - 1, -(2**31)]))
    check_narrow(np.array([], "int64"))
    check_narrow(np.array([1e300]))
    for wrong in (2**31, -(2**31) - 1):
        with pytest.raises(UsageError, match=f" {wrong} .*32 bits"):
            check_narrow(np.array([0, wrong]))


def test_padding_is_taken_out_of_the_ids():
    unique, inverse = np.unique([[5, -1, 9], [-7, -1, 5]], return_inverse=True)
    left, places = without(-1, unique, inverse.reshape(-1), 100)
    assert left.tolist() == [-7, 5, 9]
    assert places.tolist() == [1, 100, 2, 0, 100, 1]
    same, places = without(6, unique, inverse.reshape(-1), 100)
    assert same is unique
    assert places.tolist() == inverse.reshape(-1).tolist()
