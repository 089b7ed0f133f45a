"""Faults of single operations and loops: exports, interrupts, closures that wait too long."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np

import replicax as rx
from faults.fault import Fault, Outcome

_TESTS = Path(__file__).parents[2] / "tests"
_ELSEWHERE = """
import pathlib, sys, jax.export, numpy as np
program = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
print([program.call(np.ones((rows, 8), "int32")).shape[0] for rows in (1, 700)])
assert "replicax" not in sys.modules
"""


def _export_embedding(folder: Path) -> Outcome:
    with rx.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential(
            [keras.Input((8,), dtype="int32"), keras.layers.Embedding(1000, 64)]
        )
    model.compile("sgd", "mse")
    ids = np.ones((64, 8), "int32")
    model.fit(ids, jnp.zeros((64, 8, 64)), verbose=0)
    rows = jax.ShapeDtypeStruct(jax.export.symbolic_shape("rows, 8"), "int32")
    path = folder / "program.bin"
    try:
        path.write_bytes(jax.export.export(jax.jit(lambda ids: model(ids)))(rows).serialize())
    except Exception as error:  # whatever it is, it is what the table says
        return Outcome(f"not exported: {type(error).__name__}", False)
    command = [sys.executable, "-c", _ELSEWHERE, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    works = answer.stdout.strip() == "[1, 700]"
    said = "exported; a process without Replicax runs it for 1 row and for 700"
    return Outcome(said if works else "exported, but it does not run elsewhere", works)


def _interrupt(strategy: str, kind: str) -> Outcome:
    command = [sys.executable, str(_TESTS / "interrupted.py"), strategy, kind, "30"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    if done.returncode:
        return Outcome("the program ended", False)
    seen = json.loads(done.stdout.splitlines()[-1])
    if seen["wrong"]:
        return Outcome("values were lost or wrong", False, named=seen["wrong"][0], lost="variables")
    said = "each left the values of the last complete step; all that a model does works"
    return Outcome(said, seen["raised"] > 10 and seen["moments"] > 5)


def _learn(folder: Path) -> Outcome:
    results = []
    for seed in range(2):
        command = [sys.executable, str(_TESTS / "ps" / "learning.py"), "1", str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1])["accuracies"][-1])
    learned = sum(accuracy == 1.0 for accuracy in results)
    return Outcome(f"learned in {learned} of {len(results)} runs", learned == len(results))


FAULTS = (
    Fault(
        "hangs",
        "Ctrl-C at 30 random moments of `fit` on two devices",
        lambda folder: _interrupt("mirrored", "fit"),
    ),
    Fault(
        "hangs",
        "Ctrl-C at 30 random moments of a custom loop on two devices",
        lambda folder: _interrupt("mirrored", "function"),
        "unit/_fit/test_interrupts.py::test_nothing_is_lost_by_interrupts",
    ),
    Fault(
        "wrong numbers",
        "Three workers with parameter servers take large steps (RMSprop, rate 0.1)",
        _learn,
        "ps/test_staleness.py::test_a_program_of_the_tutorials_shape_learns",
    ),
    Fault(
        "wrong numbers",
        "A model with an embedding, trained on a CPU, is exported for any number of rows",
        _export_embedding,
    ),
)
