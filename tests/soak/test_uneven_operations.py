"""Random chains of operations on rows that the replicas do not divide give what one device gives.

XLA divides such rows unevenly and masks what it pads. Each seed is one program: some operations,
most of which mix rows, their gradient, and a number of rows and replicas. With `-s`, pytest shows
the last seed also if XLA ends the process. `RX_SOAK_SECONDS` makes it try more seeds.
"""

import os
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax._core.topology import Topology
from replicax._fit.step_program import shard_batch
from replicax._program.compiling import compiled
from replicax._program.table_gradients import with_slices

SECONDS = float(os.environ.get("RX_SOAK_SECONDS", "40"))
WIDTH = 4


def places(x):
    """Three kinds of rows, which depend on the data."""
    return jnp.abs(x[:, 0] * 7).astype(jnp.int32) % 3


def product_of_rows(x):
    return x @ x.T


def shifted(x):
    return jax.vmap(lambda row, i: lax.dynamic_update_slice(row, 2 * row[:2], (i,)))(
        x, places(x).astype(jnp.uint8)
    )


# Each takes rows × 4, and gives as much.
OPERATIONS = {
    "cumulative sum": lambda x: jnp.cumsum(x, 0) / 4,
    "cumulative maximum": lambda x: lax.cummax(x, 0, reverse=True),
    "sorted rows": lambda x: jnp.sort(x, 0),
    "sorted columns": lambda x: jnp.sort(x, -1),
    "order of rows": lambda x: x[jnp.argsort(x[:, 0])],
    "median": lambda x: x - jnp.median(x, 0),
    "quantile": lambda x: x - jnp.quantile(x, 0.3, -1, keepdims=True),
    "normalized": lambda x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 0.1),
    "softmax": lambda x: jax.nn.softmax(x, 0),
    "reversed": lambda x: x + x[::-1],
    "rolled": lambda x: x - jnp.roll(x, 2, 0),
    "exchanged": lambda x: jnp.concatenate([x[2:], x[:2]], 0),
    "padded": lambda x: jnp.pad(x, ((1, 2), (0, 0)), "reflect")[2:-1],
    "looked up": lambda x: x + x[places(x)],
    "added at": lambda x: x.at[places(x)].add(jnp.tanh(x)),
    "largest at": lambda x: x.at[places(x)].max(2 * x),
    "means of groups": lambda x: x - jax.ops.segment_sum(x, places(x), 3)[places(x)] / len(x),
    "along rows": lambda x: jnp.take_along_axis(x, jnp.argsort(x, -1), -1),
    "shifted": shifted,
    "attention": lambda x: jax.nn.softmax(product_of_rows(x)) @ x,
    "hardest": lambda x: x * jnp.where(jnp.eye(len(x)), -9, product_of_rows(x)).max(1)[:, None],
    "solved": lambda x: jnp.linalg.solve(product_of_rows(x) + 3 * jnp.eye(len(x)), x),
    "loop over rows": lambda x: lax.scan(lambda c, row: (c / 2 + row, c), jnp.zeros(WIDTH), x)[1],
    "loop over columns": lambda x: (
        lax.scan(lambda c, row: (jnp.tanh(c + row), c), jnp.zeros(len(x)), x.T)[1].T
    ),
    "tree of rows": lambda x: lax.associative_scan(lambda a, b: a / 2 + b, x),
    "windows of rows": lambda x: lax.reduce_window(x, 0.0, lax.add, (3, 2), (1, 1), "SAME"),
    "convolved rows": lambda x: jnp.convolve(x[:, 0], jnp.arange(3.0), "same")[:, None] + x,
    "flattened": lambda x: jnp.cumsum(x.reshape(-1)).reshape(x.shape) / 8,
    "numbered": lambda x: x * jnp.cos(jnp.arange(len(x)))[:, None],
    "noise": lambda x: x + jax.random.normal(jax.random.key(1), x.shape),
    "again": lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.cumsum(y, 0)))(x),
    "narrow": lambda x: lax.reduce_precision(x, 8, 16),
}


def program_of(seed):
    """The names of a program's operations, its replicas, and its step."""
    choose = random.Random(seed)
    names = choose.choices(sorted(OPERATIONS), k=choose.randint(1, 3))
    replicas = choose.choice([3, 4])
    rows = choose.choice([n for n in range(replicas + 1, 12) if n % replicas])
    sample = np.random.default_rng(seed)
    arrays = [sample.normal(size=(size, WIDTH)).astype("float32") for size in (WIDTH, rows)]

    def step(weights, batch):
        def loss(weights):
            x = jnp.tanh(batch @ weights)
            for name in names:
                x = OPERATIONS[name](x)
            return (x * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum(), x

        return jax.value_and_grad(loss, has_aux=True)(weights)

    return names, replicas, step, arrays


def scaled_difference(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-2)) for a, b in pairs)


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_random_chains_of_operations_on_uneven_rows():
    end, seed = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        seed += 1
        names, replicas, step, (weights, batch) = program_of(seed)
        what = f"seed {seed}: {names} of {len(batch)} rows on {replicas} replicas\n"
        sys.stdout.write(what)
        topology = Topology.local([f"CPU:{number}" for number in range(replicas)])
        own = with_slices(step, topology.mesh, platform="cpu")
        program = compiled(
            lambda state, rows, own=own, topology=topology: own(state, shard_batch(topology, rows)),
            devices=topology.devices,
            out_shardings=topology.replicated,
        )
        found = program(*(jax.device_put(array, topology.replicated) for array in (weights, batch)))
        alone = jax.jit(step)
        # A chain may amplify the last bits: by as much as it does with other last bits.
        expected, other = alone(weights, batch), alone(weights * np.float32(1 + 3e-7), batch)
        noise = scaled_difference(other, expected)
        assert scaled_difference(found, expected) <= max(1e-4, 20 * noise), what
        if seed % 50 == 0:
            jax.clear_caches()
    assert seed >= SECONDS / 8
