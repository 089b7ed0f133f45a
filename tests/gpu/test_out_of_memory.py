"""A program that needs more memory than the GPU has says what to try, and nothing is lost."""

import pytest

from helpers import run_python

pytestmark = pytest.mark.timeout(200)

# The kernel takes 60 % of the memory, and its gradient as much again.
STEP = """
import replicax as rx
import jax, keras, numpy as np
from replicax._program.explain import WHAT_TO_TRY
width = int((0.6 * jax.devices()[0].memory_stats()["bytes_limit"] / 4) ** 0.5) // 128 * 128
with rx.OneDeviceStrategy("GPU:0").scope():
    layer = keras.layers.Dense(width, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((width,)), layer])
    model.compile(keras.optimizers.SGD(1e-3), "mse")
rows = np.ones((8, width), "float32")
try:
    model.fit(rows, rows, batch_size=8, verbose=0)
except jax.errors.JaxRuntimeError as error:
    (note,) = error.__notes__
    print("RESOURCE_EXHAUSTED" in str(error), note.endswith(WHAT_TO_TRY) and "GiB" in note)
print(float(keras.ops.max(layer.kernel)), model.evaluate(rows, rows, batch_size=8, verbose=0))
"""


def test_a_step_that_needs_too_much_leaves_the_model_as_it_was(gpu):
    """Its kernel is still zero: the squared error is 1."""
    assert run_python(STEP).split()[-4:] == ["True", "True", "0.0", "1.0"]


# Variables of 8 GiB, until there is no room.
VARIABLES = """
import replicax as rx
import jax, keras, numpy as np
gibibytes = jax.devices()[0].memory_stats()["bytes_limit"] // 2**30
tables = []
with rx.OneDeviceStrategy("GPU:0").scope():
    try:
        for _ in range(gibibytes // 8 + 1):
            tables.append(keras.Variable(shape=(2**31,), initializer="zeros"))
    except jax.errors.JaxRuntimeError as error:
        print("RESOURCE_EXHAUSTED" in str(error))
tables.clear()
with rx.OneDeviceStrategy("GPU:0").scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
rows = np.ones((8, 4), "float32")
model.fit(rows, rows[:, :1], batch_size=8, verbose=0)
print(np.allclose(model.get_weights()[0], 0.2))
"""


def test_another_model_trains_after_one_that_did_not_fit(gpu):
    """The gradient of each weight is 2 (0 - 1), the mean over equal rows."""
    assert run_python(VARIABLES).split()[-2:] == ["True", "True"]
