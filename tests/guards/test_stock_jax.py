"""Other people's programs of JAX are left alone: they lower to the same text whatever we do."""

import json

import measured
import pytest

pytestmark = pytest.mark.timeout(300)

# Programs that hold what our tuning replaces in our own programs: each is made anew for each look,
# because JAX keeps what it has lowered.
LOOK = """
import json

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

IMAGES, WEIGHTS = np.ones((4, 16, 16, 8), "float32"), np.ones((3, 3, 8, 16), "float32")
ROWS, TABLE = np.ones((64, 32), "float32"), np.ones((1000, 32), "float32")
IDS = np.arange(256, dtype="int32").reshape(64, 4)
HEADS = np.ones((2, 64, 4, 16), "float32")

def convolved(images, weights):
    kind = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(images, weights, (1, 1), "SAME", dimension_numbers=kind)

def pooled(images):
    window, strides = (1, 2, 2, 1), (1, 2, 2, 1)
    return lax.reduce_window(images, -np.inf, lax.max, window, strides, "VALID")

def updated(values, gradients, first, second, rate):
    first = 0.9 * first + 0.1 * gradients
    second = 0.999 * second + 0.001 * gradients**2
    return values - rate * first / (jnp.sqrt(second) + 1e-7), first, second

def attended(query, key, value):
    return jax.nn.dot_product_attention(query, key, value, is_causal=True)

def looked_up(table, ids):
    return jnp.take(table, ids, axis=0).sum(1)

def looped(rows, weights):
    return lax.scan(lambda state, row: (jnp.tanh(state @ weights + row),) * 2, rows[0], rows)

PROGRAMS = {
    "matmul": (lambda x, w: x @ w, ROWS, ROWS.T),
    "convolution": (convolved, IMAGES, WEIGHTS),
    "pooling": (pooled, IMAGES),
    "softmax": (lambda x: jax.nn.softmax(jax.nn.gelu(x)), ROWS),
    "attention": (attended, HEADS, HEADS, HEADS),
    "gather": (looked_up, TABLE, IDS),
    "scatter": (lambda t, i, r: t.at[i[:, 0]].add(r), TABLE, IDS, ROWS),
    "update": (updated, TABLE, TABLE, TABLE, TABLE, np.float32(0.1)),
    "loop": (looped, ROWS, ROWS[:32]),
}

def lowered(fn, arrays):
    def program(*given):
        return fn(*given)

    def gradients(*given):
        def total(first):
            return sum(jnp.sum(one) for one in jax.tree.leaves(fn(first, *given[1:])))

        return jax.grad(total)(given[0])

    return [jax.jit(one).lower(*arrays).as_text() for one in (program, gradients)]

def texts():
    jax.clear_caches()
    return {name: lowered(fn, arrays) for name, (fn, *arrays) in PROGRAMS.items()}

stock, changed = texts(), []

def look(when):
    now = texts()
    changed.extend(f"{name}, {when}" for name in stock if now[name] != stock[name])
"""

USED = """
import replicax as rx

look("imported")
import keras

CPUS = ["CPU:0", "CPU:1"]
STRATEGIES = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:0"),
    "central storage": lambda: rx.CentralStorageStrategy(CPUS),
    "model parallel": lambda: rx.ModelParallelStrategy(model_parallel=2, devices=CPUS),
    "several workers": rx.MultiWorkerMirroredStrategy,
    "parameter servers": lambda: rx.ParameterServerStrategy(num_workers=1, num_ps=1),
    "mirrored, sharded": lambda: rx.MirroredStrategy(CPUS, shard_parameters=True),
    "mirrored": lambda: rx.MirroredStrategy(CPUS),
}
for name, made in STRATEGIES.items():
    strategy = made()
    look(f"{name} made")

x, y = np.ones((8, 8, 8, 3), "float32"), np.ones((8, 2), "float32")

def use(when):
    with strategy.scope():
        model = keras.Sequential([
            keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3), keras.layers.MaxPooling2D(),
            keras.layers.Flatten(), keras.layers.Dense(2, activation="softmax"),
        ])
        model.compile("adam", "mse")
        look(f"in a scope{when}")
    strategy.run(model, args=(x,))
    look(f"after run{when}")
    model.fit(x, y, batch_size=8, verbose=0)
    look(f"after fit{when}")
    rx.function(lambda x: keras.ops.softmax(x @ x))(jnp.ones((4, 4)))
    look(f"after rx.function{when}")

use("")
import replicax.tf
use(" of a program that speaks TensorFlow")
print(json.dumps(changed))
"""

# A rule for everybody, as we had some: what the look is for.
REPLACED = """
from jax.interpreters import mlir

mlir.register_lowering(
    lax.tanh_p, mlir.lower_fun(lambda x, **how: lax.exp(x), multiple_results=False)
)
look("replaced")
print(json.dumps(changed))
"""


@pytest.mark.parametrize(
    ("what", "changed"), [(USED, []), (REPLACED, ["softmax, replaced", "loop, replaced"])]
)
def test_a_program_without_a_strategy_lowers_to_the_same_text(what, changed):
    assert json.loads(measured.in_a_process(LOOK + what)) == changed
