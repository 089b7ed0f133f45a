"""First values of variables: those of Keras, to the bit."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax._core import threefry
from replicax._fit.hooks import install_hooks
from replicax._keras import _compat

install_hooks()

# In a process of its own: here XLA is told to make machine code quickly, not as for users.
DRAWS = """
import numpy as np
from replicax._keras import _compat
from replicax._fit.hooks import install_hooks

install_hooks()
for name, limits in {
    "uniform": {"minval": -0.07, "maxval": 0.07},
    "uniform ": {"minval": 0.3, "maxval": 1.7},
    "uniform  ": {"minval": 1e-9, "maxval": 1.0},
    "uniform   ": {"minval": 1.0, "maxval": -1.0},
    "normal": {"mean": 0.3, "stddev": 0.7},
    "truncated_normal": {"mean": 0.0, "stddev": 0.05},
}.items():
    draw = getattr(_compat.jax_random, name.strip())
    for shape in [(7,), (3, 3, 5, 16), (65537,)]:
        ours, theirs = (d(shape, **limits, seed=3) for d in (draw, draw._replicax_original))
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
print("same")
"""


def test_what_is_drawn_for_many_shapes_at_once_is_what_keras_draws():
    done = subprocess.run(
        [sys.executable, "-c", DRAWS],
        env={**os.environ, "XLA_FLAGS": ""},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split() == ["same"], done.stderr


def test_a_generator_goes_on():
    generators = [keras.random.SeedGenerator(5), keras.random.SeedGenerator(5)]
    draws = [keras.random.uniform, _compat.jax_random.uniform._replicax_original]
    for _ in range(2):
        ours, theirs = (draw((4,), seed=seed) for draw, seed in zip(draws, generators, strict=True))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_numbers_stand_for_the_same_keys_as_in_keras(seed):
    ours = keras.random.uniform((4,), seed=seed)
    np.testing.assert_array_equal(ours, jax.random.uniform(jnp.array([seed, 0], "uint32"), (4,)))
    typed = jax.random.wrap_key_data(jnp.array([seed, 0], "uint32"))
    np.testing.assert_array_equal(_compat.jax_random.uniform((4,), seed=typed), ours)


@pytest.mark.skipif(not threefry.rounds_once(), reason="programs draw on this CPU")
def test_nothing_is_compiled_for_a_first_value(caplog):
    with jax.log_compiles():
        keras.random.uniform((6, 31), -0.1, 0.1, seed=3)
        keras.initializers.Zeros()((5, 17))
        keras.Variable(0.01, dtype="float32").assign(0.02)
        keras.Variable(3, dtype="int")
        assert not caplog.records
        jnp.asarray(np.ones((6, 31))) + 1
    assert caplog.records  # else the log says nothing of compilations any more


def test_limits_that_may_round_twice_are_left_to_programs():
    assert threefry.is_exact(-0.1, 0.1)
    assert threefry.is_exact(0, 1)
    for low, high in [(1e-9, 1), (1, 1 + 1e-5), (1, 0), (0, 0), (0, float("inf"))]:
        assert not threefry.is_exact(low, high)


def test_compiled_functions_draw_as_ever():
    drawn = jax.jit(lambda: keras.random.uniform((4,), seed=3))()
    np.testing.assert_allclose(drawn, keras.random.uniform((4,), seed=3), rtol=1e-6)


def test_constants():
    ones = keras.initializers.Ones()((2, 3), "bfloat16")
    assert (ones.dtype, ones.shape, float(ones.sum())) == ("bfloat16", (2, 3), 6.0)
    assert keras.initializers.Zeros()((2,)).dtype == "float32"
    assert keras.initializers.Zeros()((), "bool").dtype == "bool"


def test_numbers_of_their_own():
    for value, dtype in [(0.1, "float32"), (3, "int"), (2, "float32"), (0.1, "bfloat16")]:
        theirs = jnp.asarray(value, keras.backend.standardize_dtype(dtype))
        found = keras.Variable(value, dtype=dtype).value
        assert (found.dtype, found.shape, found.weak_type) == (theirs.dtype, (), False)
        assert found == theirs
    with pytest.raises(OverflowError):
        keras.Variable(2**31, dtype="int32")
