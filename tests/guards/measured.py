"""Figures of the house that may only go down: what is measured, and how.

    python tests/guards/measured.py            measured, recorded and aimed-at figures, as a table
    python tests/guards/measured.py --lower    lower what is recorded to what is measured

The figures stand in `figures.json`. Everything is measured from outside, by public names, so that a
rebuild of the rooms behind them needs no change here.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SRC = ROOT / "src" / "replicax"
OURS = f"{SRC}{os.sep}"  # how the names of our files begin
FIGURES = HERE / "figures.json"
SECONDS = 250

# What the rebuild aims at; the other figures have no goal but to be low.
GOALS = {
    "files in a step of run": 4,
    "files in a step of fit": 6,
    "files in a closure": 21,
    "attributes of Keras replaced": 40,
    "attributes of JAX replaced": 0,
    "context variables": 4,
}


def in_a_process(program: str, *arguments: str, **variables: str) -> str:
    """Run the program in a fresh process with two virtual devices; return its last line."""
    environ = {
        **os.environ,
        "JAX_NUM_CPU_DEVICES": "2",
        "KERAS_BACKEND": "jax",
        "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent / "lean", ROOT / "src"))),
        "OURS": OURS,
        **variables,
    }
    with tempfile.TemporaryDirectory() as home:  # so that nothing is there from an earlier start
        finished = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**environ, "HOME": home, "XDG_CACHE_HOME": home},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.splitlines()[-1]


# The modules and classes of a library, what each of their names is bound to, and JAX's lowerings.
SNAPSHOT = """
import json, os, sys, threading

def bound(library):
    found, classes = {}, set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != library or module is None:
            continue
        owners = [(name, module)]
        owners += [
            (f"{name}.{key}", kind)
            for key, kind in list(vars(module).items())
            if isinstance(kind, type) and kind.__module__ == name and kind not in classes
        ]
        classes.update(held for _, held in owners[1:])
        for owner, held in owners:
            for key, value in list(vars(held).items()):
                if callable(value) or isinstance(value, (property, classmethod, staticmethod)):
                    found[owner, key] = value
    return found

def lowerings():
    from jax._src.interpreters import mlir
    rules = {("lowering", str(one)): rule for one, rule in mlir._lowerings.items()}
    for platform, of_it in mlir._platform_specific_lowerings.items():
        rules |= {(platform, str(one)): rule for one, rule in of_it.items()}
    return rules

def is_ours(value):
    filename = getattr(getattr(value, "__code__", None), "co_filename", "")
    return filename.startswith(os.environ["OURS"])

def replaced(before, after):
    changed = {key for key in before if after.get(key) is not before[key]}
    added = {key for key in after.keys() - before.keys() if is_ours(after[key])}
    primitives = {name for _, name in before}
    rules = {(where, name) for where, name in added if where in ("cpu", "lowering")}
    return sorted(".".join(key) for key in changed | added - {
        key for key in rules if key[1] not in primitives
    })

import jax, keras
before = bound("keras"), {**bound("jax"), **lowerings()}
"""

REPLACED = (
    SNAPSHOT
    + """
import replicax as rx
rx.MirroredStrategy()
after = bound("keras"), {**bound("jax"), **lowerings()}
print(json.dumps([replaced(*pair) for pair in zip(before, after)]))
"""
)

IMPORTED = (
    SNAPSHOT
    + """
def around():
    tasks = f"/proc/{os.getpid()}/task"
    children = [open(f"{tasks}/{one}/children").read().split() for one in os.listdir(tasks)]
    return {
        "threads": [one.name for one in threading.enumerate()],
        "children": sorted(sum(children, [])),
        "meta_path": [repr(one) for one in sys.meta_path],
        "environment": dict(os.environ),
    }

import importlib
was = around()
importlib.import_module(sys.argv[1])
now = around()
after = bound("keras"), {**bound("jax"), **lowerings()}
changes = [name for name in was if was[name] != now[name]]
changes += [f"{name} replaced" for pair in zip(before, after) for name in replaced(*pair)]
print(json.dumps(changes))
"""
)


def replaced_attributes() -> tuple[list[str], list[str]]:
    """Return the attributes of Keras and of JAX that the first strategy replaces."""
    keras, jax = json.loads(in_a_process(REPLACED))
    return keras, jax


def effects_of_importing(module: str) -> list[str]:
    """Return what importing the module changes for the whole process."""
    return json.loads(in_a_process(IMPORTED, module))


FILES_OF_A_STEP = """
import json, os, sys
from steps import STEPS

ours = os.environ["OURS"]

step = STEPS[sys.argv[1]](2)
for _ in range(3):
    step()
files = set()

def seen(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(ours):
        files.add(frame.f_code.co_filename)

step(lambda: sys.setprofile(seen), lambda: sys.setprofile(None))
print(json.dumps(sorted(name.removeprefix(ours) for name in files)))
"""


def files_of_a_step(kind: str) -> list[str]:
    """Return the files of ours in which Python runs during a steady step of `run` or `fit`."""
    return json.loads(in_a_process(FILES_OF_A_STEP, kind))


# In every process: the coordinator, a worker and a server. `window` holds the number of the closure
# that is looked at, else 0. Beats and the like are seen with few closures, hence the majority.
NOTED_BY_ALL = """
import mmap, os, sys, threading

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))
ours, folder = os.environ["OURS"], os.environ["NOTED"]
with open(f"{folder}/window", "rb") as file:
    window = mmap.mmap(file.fileno(), 1, prot=mmap.PROT_READ)
noted = set()

def seen(frame, event, argument):
    number, name = window[0], frame.f_code.co_filename
    if number and event == "call" and name.startswith(ours) and (number, name) not in noted:
        noted.add((number, name))
        with open(f"{folder}/{number}.txt", "a") as file:
            file.write(f"{name}\\n")

threading.setprofile(seen)
sys.setprofile(seen)
"""

FILES_OF_A_CLOSURE = """
import collections, json, os, pathlib, sys, time

folder = pathlib.Path(os.environ["HOME"])
(folder / "window").write_bytes(bytes(1))
(folder / "sitecustomize.py").write_text(sys.argv[1])
os.environ["NOTED"] = str(folder)
sys.path.insert(0, str(folder))  # and so the members' one
exec(sys.argv[1], {})

import keras, numpy as np
import replicax as rx

def look_at(number):
    with open(folder / "window", "r+b") as file:  # not made anew: it is mapped
        file.write(bytes([number]))

COUNT = 9
strategy = rx.ParameterServerStrategy(num_workers=1, num_ps=1)
coordinator = rx.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
batch = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")

def train(x, y):
    def loss_of():
        return keras.ops.mean(keras.ops.square(model(x, training=True) - y))
    loss, gradients = rx.value_and_grad(loss_of, model)()
    optimizer.apply(gradients, model.trainable_variables)
    return loss

step = rx.function(lambda x, y: strategy.run(train, args=(x, y)))
for number in [0] * 9 + list(range(1, COUNT + 1)):
    look_at(number)
    coordinator.schedule(step, args=batch).fetch()
    time.sleep(0.05)  # what comes after the answer is of the closure, too
    look_at(0)
strategy.close()
seen = [set((folder / f"{number}.txt").read_text().split()) for number in range(1, COUNT + 1)]
counts = collections.Counter(name for names in seen for name in names)
often = sorted(name for name, count in counts.items() if count > COUNT / 2)
print(json.dumps([name.removeprefix(os.environ["OURS"]) for name in often]))
"""


def files_of_a_closure() -> list[str]:
    """Return the files of ours that a steady closure passes, from `schedule` to its result."""
    return json.loads(in_a_process(FILES_OF_A_CLOSURE, NOTED_BY_ALL))


# What XLA writes while a step is made and run is of that step.
OPERATIONS = """
import json, os, sys
from steps import STEPS

folder, replicas, *kinds = sys.argv[1:]
files = {}
for kind in kinds:
    before = set(os.listdir(folder))
    STEPS[kind](int(replicas))()
    files[kind] = sorted(set(os.listdir(folder)) - before)
print(json.dumps(files))
"""
KINDS = ("mlp", "cnn", "embedding", "run")
OF_A_STEP = re.compile(r"jit_(program|step)\.before_optimizations\.txt$")

# The compilers of CPUs do not change the text before optimization.
OPERATION = re.compile(r"^\s+(?:ROOT )?[\w.\-%]+ = .*? ([a-z][\w\-]*)\(", re.MULTILINE)
# What computes nothing: JAX writes more of it, or less, from version to version.
NOTE = re.compile(r".* get-tuple-element\(.*|.*custom_call_target=\"(?:Sharding|xla\.sdy\.).*")


@functools.cache
def operations_of_steps(replicas: int) -> dict[str, dict[str, int]]:
    """Return how often each operation of XLA stands in the program of each kind of step."""
    with tempfile.TemporaryDirectory() as folder:
        flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        own = {"XLA_FLAGS": flags, "RX_COMPILATION_CACHE": "off"}
        files = json.loads(in_a_process(OPERATIONS, folder, str(replicas), *KINDS, **own))
        return {kind: operations_of_the_step(folder, names) for kind, names in files.items()}


def operations_of_the_step(folder: str, names: list[str]) -> dict[str, int]:
    """Return the operations of the largest program that is none of a new model's variables."""
    files = (Path(folder, name) for name in names if OF_A_STEP.search(name))
    texts = (NOTE.sub("", path.read_text()) for path in files)
    counted = max((Counter(OPERATION.findall(text)) for text in texts), key=Counter.total)
    return dict(sorted(counted.items()))


def context_variables() -> int:
    return sum(
        isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "ContextVar"
        for path in SRC.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    )


def sizes() -> dict[str, int]:
    """Return the lines of each room of the source, and the number of all files."""
    lines: Counter[str] = Counter()
    files = [path for path in SRC.rglob("*") if path.suffix in {".py", ".c", ".h"}]
    for path in files:
        inner = path.relative_to(SRC).parts
        room = inner[0] if len(inner) > 1 else "replicax"
        lines[f"lines of {room}"] += len(path.read_text().splitlines())
    return {**dict(sorted(lines.items())), "lines": lines.total(), "files": len(files)}


def figures() -> dict[str, int]:
    keras, jax = replaced_attributes()
    return {
        "files in a step of run": len(files_of_a_step("run")),
        "files in a step of fit": len(files_of_a_step("fit")),
        "files in a closure": len(files_of_a_closure()),
        "attributes of Keras replaced": len(keras),
        "attributes of JAX replaced": len(jax),
        **{
            f"effects of importing {module}": len(effects_of_importing(module))
            for module in ("replicax", "replicax.strategies", "replicax.tf")
        },
        "context variables": context_variables(),
        **sizes(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lower", action="store_true", help="record what is measured, if lower")
    chosen = parser.parse_args()
    recorded = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    measured = figures()
    print(f"{'':34}  measured  recorded  goal")
    for what, figure in measured.items():
        print(f"{what:34}{figure:10}{recorded.get(what, ''):>10}{GOALS.get(what, ''):>6}")
    if chosen.lower:
        lowered = {
            what: min(figure, recorded.get(what, figure)) for what, figure in measured.items()
        }
        FIGURES.write_text(json.dumps(lowered, indent=2) + "\n")


if __name__ == "__main__":
    main()
