"""Mistakes that people make with Replicax, replayed: what each prints, and its exit code.

    python tests/people/mistakes.py            print them all
    python tests/people/mistakes.py --docs     write the table of docs/errors.md anew

`test_mistakes.py` checks for each that it ends, how, and that its last line has the named fact.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))

from zygote import Zygote

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
BEGIN, END = "<!-- mistakes: begin -->\n", "<!-- mistakes: end -->\n"
SECONDS = 120.0


class Mistake(NamedTuple):
    """What somebody wrote, a fact that the answer must hold, and how it ends."""

    written: str  # as the table shows it
    says: str
    program: str = ""  # lines in front, or the whole program, where `written` is not enough
    environ: tuple[tuple[str, str], ...] = ()
    code: int = 1

    @property
    def is_command(self) -> bool:
        return self.written.startswith("replicax")


MODEL = """
rx.testing.virtual_devices(2)
import jax.numpy as jnp
import keras
import numpy as np
strategy = rx.MirroredStrategy()
x, y = np.ones((6, 2), "float32"), np.ones((6, 1), "float32")
def built():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model
(batch,) = strategy.experimental_distribute_dataset([x])
(uneven,) = strategy.experimental_distribute_dataset([x[:3]])
"""

COMMAND = """
import runpy, sys
sys.argv = {}
runpy.run_module("replicax", run_name="__main__", alter_sys=True)
"""

MISTAKES = [
    # Names.
    Mistake("rx.MirorredStrategy()", "MirroredStrategy"),
    Mistake("strategy.experimental_run_v2(f)", "strategy.run(fn", MODEL),
    Mistake("strategy.distribute_dataset(x)", "experimental_distribute_dataset", MODEL),
    Mistake("tf.nonsense", "tf.nonsense", "import replicax.tf as tf"),
    Mistake("tf.io.nonsense", "rx.data", "import replicax.tf as tf"),
    Mistake("tf.relu(1.0)", "tf.nn.relu", "import replicax.tf as tf"),
    Mistake("rx.data.Dataset.rang(3)", "range"),
    # Devices and arguments.
    Mistake('rx.MirroredStrategy("gpu")', "replicax[cuda]"),
    Mistake("rx.MirroredStrategy(4)", "virtual_devices"),
    Mistake('rx.OneDeviceStrategy("GPU:0")', "JAX sees CPU:0"),
    Mistake('rx.MirroredStrategy(["CPU:0", "CPU:0"])', "more than once"),
    Mistake('rx.MirroredStrategy(cross_device_ops="ring")', "'nccl'"),
    Mistake('rx.MirroredStrategy(compression="zip")', "'bf16'"),
    Mistake("rx.testing.virtual_devices(4)", "top of the program", "import jax; jax.devices()"),
    Mistake("rx.MirroredStrategy(devces=2)", "'devices'"),
    Mistake("rx.layers.StringLookup(max_token=3)", "max_token"),
    Mistake("rx.TPUStrategy()", "replicax[tpu]"),
    Mistake(
        "rx.ParameterServerStrategy(num_workers=0, num_ps=1)",
        "num_workers",
        "import replicax as rx",
    ),
    Mistake("rx.MirroredStrategy()", "KERAS_BACKEND=jax", environ=(("KERAS_BACKEND", "torch"),)),
    Mistake(
        "rx.MirroredStrategy()", "KERAS_BACKEND=jax", environ=(("KERAS_BACKEND", "tensorflow"),)
    ),
    Mistake("rx.MultiWorkerMirroredStrategy()", "TF_CONFIG", environ=(("TF_CONFIG", "{"),)),
    Mistake("rx.MultiWorkerMirroredStrategy(2)", "replicax run"),
    Mistake('rx.MultiWorkerMirroredStrategy(None, "nccl")', "CommunicationOptions"),
    Mistake('rx.TPUStrategy("local")', "ClusterResolver"),
    Mistake("rx.ParameterServerStrategy(2)", "ClusterResolver"),
    # Inside and outside of `run`.
    Mistake("strategy.run(lambda rows: rows.sum(), args=batch)", "args=(batch,)", MODEL),
    Mistake(
        "float(strategy.run(lambda rows: rows.sum(), args=(batch,)))", "strategy.reduce", MODEL
    ),
    Mistake('strategy.reduce("SUM", strategy.run(lambda: 1.0), axis=0)', "axis=None", MODEL),
    Mistake('strategy.reduce("SUM", strategy.run(lambda: 1.0), axis="0")', "got '0'", MODEL),
    Mistake('strategy.reduce("avg", strategy.run(lambda: 1.0), axis=None)', "'MEAN'", MODEL),
    Mistake('strategy.reduce("SUM", 1.0, axis=None)', "strategy.run", MODEL),
    Mistake('strategy.run(lambda: strategy.reduce("SUM", 1.0, axis=None))', "all_reduce", MODEL),
    Mistake(
        'strategy.reduce("SUM", strategy.run(lambda rows: rows, args=(uneven,)), axis=None)',
        "axis=0",
        MODEL,
    ),
    Mistake("strategy.run(lambda rows: float(rows.sum()), args=(batch,))", "float", MODEL),
    Mistake(
        "strategy.run(lambda rows: last.assign(rows.max()), args=(batch,))",
        "all_reduce",
        MODEL + "with strategy.scope():\n    last = keras.Variable(0.0)\n",
    ),
    Mistake(
        "with strategy.scope(): rx.nn.compute_average_loss(jnp.ones(4))", "strategy.run", MODEL
    ),
    Mistake(
        "strategy.run(lambda: other + 1)  # a variable of another strategy",
        "another strategy",
        MODEL + "with rx.OneDeviceStrategy('CPU:1').scope():\n    other = keras.Variable(1.0)\n",
    ),
    # Models and data.
    Mistake(
        "model.fit(dataset, y, verbose=0)",
        "leave `y` out",
        MODEL
        + "with strategy.scope():\n    model = built()\n"
        + "dataset = rx.data.Dataset.from_tensor_slices((x, y)).batch(2)\n",
    ),
    Mistake(
        "model.fit(dataset, verbose=0)  # without .batch",
        "batch",
        MODEL
        + "with strategy.scope():\n    model = built()\n"
        + "dataset = rx.data.Dataset.from_tensor_slices((x, y))\n",
    ),
    Mistake("rx.data.Dataset.range(4).batch(0)", "`batch_size`"),
    Mistake('rx.data.Dataset.list_files("/nowhere/*.csv")', "/nowhere/*.csv"),
    Mistake('rx.train.Checkpoint().restore("/nowhere/ckpt-1")', "/nowhere/ckpt-1"),
    # Commands.
    Mistake("replicax runn train.py", "Did you mean 'run'?", code=2),
    Mistake("replicax run nofile.py", "nofile.py", code=2),
    Mistake("replicax run --worker 2 train.py", "Did you mean '--workers'?", code=2),
    Mistake("replicax run --workers 0 train.py", "at least 1", code=2),
    Mistake("replicax run train.py --workers 2", "before it", code=0),
    Mistake("replicax k8s train.py", "--image", code=2),
    Mistake("replicax verify nofile.py", "nofile.py", code=2),
    Mistake("replicax plan nofile.h5", "nofile.h5", code=2),
    Mistake("replicax compare --strategies miror", "Did you mean 'mirrored'?", code=2),
]


# What is printed to standard output is no answer to a mistake.
ERRORS_ONLY = "import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\n"


class Ended(NamedTuple):
    """How a replayed mistake ended, and what it printed last to standard error."""

    code: int
    said: str


def replay(mistake: Mistake) -> Ended:
    """Run it in a process of its own, in an empty folder with a small train.py."""
    program = f"import replicax as rx\n{mistake.program}\n{mistake.written}\n"
    if mistake.is_command:
        program = COMMAND.format(mistake.written.split())
    program = ERRORS_ONLY + program
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text("")
        said = Path(folder, "said")
        run = _run_apart if mistake.environ else _run_forked
        code = run(program, said, folder, {"JAX_NUM_CPU_DEVICES": "1", **dict(mistake.environ)})
        last = _last(said.read_text(errors="replace"), mistake.is_command)
    return Ended(code, last.replace(folder, "/home/me"))


def _run_apart(program: str, said: Path, folder: str, variables: dict[str, str]) -> int:
    """Run it in this environment, which Keras reads when it is imported."""
    command, environ = [sys.executable, "-c", program], {**os.environ, **variables}
    with said.open("w") as file:
        done = subprocess.run(
            command, env=environ, cwd=folder, stdout=file, stderr=file, timeout=SECONDS, check=False
        )
    return done.returncode


def _run_forked(program: str, said: Path, folder: str, variables: dict[str, str]) -> int:
    started = _zygote().start("-c", program, output=said, cwd=folder, variables=variables)
    return started.wait(SECONDS)


@functools.cache
def _zygote() -> Zygote:
    """Return a process that has imported Replicax, which takes longer than a mistake, and forks."""
    zygote = Zygote()
    atexit.register(zygote.close)
    return zygote


def _last(errors: str, is_command: bool) -> str:
    """Return what a reader sees last: the error without its traceback, or a command's last line."""
    lines = [line for line in errors.strip().splitlines() if line.strip()]
    if is_command:
        return lines[-1] if lines else ""
    begins = [n for n, line in enumerate(lines) if line.startswith(("replicax.", "AttributeError"))]
    text = " ".join(line.strip() for line in lines[begins[-1] if begins else -1 :])
    text = text.partition(" -------------------- ")[0]  # JAX's note on its frames
    return text.replace("replicax._core.errors.", "")


def table() -> str:
    """Return the table of docs/errors.md."""
    rows = []
    for mistake in MISTAKES:
        ended = replay(mistake)
        written = " ".join(
            [*(f"{name}={value}" for name, value in mistake.environ), mistake.written]
        )
        shown = ended.said.replace("|", "\\|")
        rows.append(f"| `{written}` | {shown} | {ended.code} |\n")
    return "| written | printed | exit code |\n|---|---|---|\n" + "".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--docs", action="store_true", help="write docs/errors.md anew")
    text = table()
    if not parser.parse_args().docs:
        sys.stdout.write(text)
        return
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + text + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
