"""How long each tool takes for its help, and for its result on a small program.

    python benchmarks/tools.py --rounds 5

The program trains a small model for two epochs. Times are medians of runs that begin anew, without
compiled programs of earlier runs; CPU time is that of all processes.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

PROGRAM = """
import numpy as np
import replicax as rx
import keras

strategy = rx.MirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(64, "relu"),
                              keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(1024, 32)).astype("float32")
model.fit(x, x.sum(axis=1, keepdims=True), batch_size=32, epochs=2, verbose=0)
"""
OLD_PROGRAM = PROGRAM.replace("import replicax as rx\nimport keras", "import tensorflow as tf")
OLD_PROGRAM = OLD_PROGRAM.replace("rx.", "tf.distribute.").replace("keras.", "tf.keras.")
COMMANDS = {
    "compare": ["--examples", "512", "--epochs", "1", "--strategies", "one_device,mirrored"],
    "devices": [],
    "doctor": [],
    "doctor train.py": ["train.py"],
    "init": ["--yes", "--output", "first.py"],
    "k8s": ["--image", "image", "train.py"],
    "migrate": ["old.py"],
    "plan": ["train.py", "--cpu", "8", "--no-bisect"],
    "profile": ["train.py"],
    "run": ["--workers", "2", "train.py"],
    "slurm": ["train.py"],
    "top": None,  # it has no result of its own
    "verify": ["train.py"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command (default 5)")
    parser.add_argument("--only", default="", metavar="NAME,…", help="some of the tools")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(COMMANDS)
    print("| tool | its help, s | its help, CPU s | result, s | result, CPU s |")
    print("| --- | --: | --: | --: | --: |")
    for name in chosen:
        shown = [*measured([name.split()[0], "--help"], options.rounds)]
        arguments = COMMANDS[name]
        if arguments is not None:
            shown += measured([name.split()[0], *arguments], options.rounds)
        cells = [f"{seconds:.2f}" for seconds in shown] + ["–"] * (4 - len(shown))
        print(f"| `{name}` | {' | '.join(cells)} |", flush=True)


def measured(command: list[str], rounds: int) -> tuple[float, float]:
    """Wall and CPU seconds of a command, the medians."""
    times = [timed(command) for _ in range(rounds)]
    walls, cpus = zip(*times, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def timed(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of a command in a new folder."""
    with tempfile.TemporaryDirectory() as folder:
        for file, program in (("train.py", PROGRAM), ("old.py", OLD_PROGRAM)):
            Path(folder, file).write_text(textwrap.dedent(program))
        before, begin = children(), time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "replicax", *command],
            cwd=folder,
            env={**os.environ, "RX_COMPILATION_CACHE": "off"},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr}")
    return seconds, children() - before


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
