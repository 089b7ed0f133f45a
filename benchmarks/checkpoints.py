"""Seconds and memory of saving and restoring a model by two workers on one machine.

    python benchmarks/checkpoints.py

Variables of 400 MB in all are whole on each worker, or divided over both.
Memory is the highest that a worker takes above what it has before; each figure is of new processes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

WORKERS = 2
UNITS, COUNT = 3000, 11  # variables of 36 MB, which malloc gives back to the system at once
KINDS = {"whole": "whole on each", "divided": "divided over both"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, help="on the disk that counts")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)  # as a worker
    options = parser.parse_args()
    if options.serve:
        serve(options.serve[0], options.serve[1], options.folder)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for kind, said in KINDS.items():
            for what in ("save", "save by a thread", "restore"):
                command = [sys.executable, "-m", "replicax.launch", "run", "--workers"]
                command += [str(WORKERS), __file__, "--folder", folder, "--serve", kind, what]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                found = [line for line in done.stdout.splitlines() if "MB" in line]
                print(f"{said}, {what}:", *sorted(found), sep="\n    ", flush=True)


def serve(kind: str, what: str, folder: Path) -> None:
    """Do one thing as a worker, and say what it took."""
    import replicax as rx

    made = variables(kind)
    checkpoint = rx.train.Checkpoint(made=made)
    for variable in made:
        variable.assign(np.full(variable.shape, 3.0, "float32"))
        variable.value.block_until_ready()
    path = str(folder / kind)
    before, begin = memory(restart=True), time.perf_counter()
    if what == "restore":
        checkpoint.read(path)
    else:
        checkpoint.write(path, asynchronous=what != "save")
    called = time.perf_counter() - begin
    checkpoint.wait()
    seconds = time.perf_counter() - begin
    print(f"{seconds:.2f} s, of which the program waits {called:.2f} s; {memory() - before:.0f} MB")


def variables(kind: str) -> list[Any]:
    """Large variables under a strategy."""
    import keras
    from multi_process.divided import Divided

    import replicax as rx

    strategy = Divided() if kind == "divided" else rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        return [keras.Variable(np.zeros((UNITS, UNITS), "float32")) for _ in range(COUNT)]


def memory(*, restart: bool = False) -> float:
    """The most memory that this process has had, in MB; `restart` begins to watch anew."""
    if restart:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    main()
