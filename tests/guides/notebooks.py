"""Runs TensorFlow's own notebooks, cell by cell, with the import changed, and says what fails.

    git clone https://github.com/tensorflow/docs
    python tests/guides/notebooks.py docs/site/en --json found.json

Each notebook runs in a process of its own on two virtual devices, with TensorFlow blocked and data
made up: fewer pictures, and reshaped by as many as there are. Lines for the shell are left out;
files that a cell writes go to a temporary folder. A cell that fails is noted, and the next one
runs; a cell that lacks a download, a package, or what an earlier cell would have made counts as
without its data. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What the checkout has of distribution, and of what distributed programs are made of.
NOTEBOOKS = (
    *(
        f"guide/{name}"
        for name in (
            *("advanced_autodiff", "autodiff", "basic_training_loops", "basics", "checkpoint"),
            *("data", "distributed_training", "effective_tf2", "function", "intro_to_graphs"),
            *("intro_to_modules", "migrate/mirrored_strategy", "mixed_precision"),
            *("random_numbers", "saved_model", "tensor", "tensor_slicing", "tpu", "variable"),
        )
    ),
    "tutorials/customization/custom_layers",
    *(
        f"tutorials/distribute/{name}"
        for name in (
            *("custom_training", "input", "keras", "multi_worker_with_ctl"),
            *("multi_worker_with_keras", "parameter_server_training", "save_and_load"),
        )
    ),
    "tutorials/quickstart/advanced",
)
# What takes a fixed number of batches from a data set gets as many pictures.
ROWS = {"custom_training": 10 * 128, "multi_worker_with_ctl": 70 * 128}
_LACKING = ("Exception: URL fetch failure", "ModuleNotFoundError", "NameError")
_SHELL = re.compile(r"^(\s*!|%[a-z]).*$", re.MULTILINE)
_ALL_PICTURES = re.compile(r"reshape\((?:60000|10000),")  # of MNIST
_IMPORT = re.compile(r"^(\s*)(import|from) tensorflow\b(?!_)", re.MULTILINE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="the folder with guide/ and tutorials/")
    parser.add_argument("--only", default="", help="notebooks with this in their path")
    parser.add_argument("--seconds", type=int, default=400, help="limit for a notebook")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        run_cells(arguments.checkout)
        return
    found = {}
    for name in (name for name in NOTEBOOKS if arguments.only in name):
        found[name] = run_notebook(arguments.checkout / f"{name}.ipynb", arguments.seconds)
        print(row(name, found[name]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def row(name: str, result: dict) -> str:
    failed = "; ".join(f"[{cell}] {error}" for cell, error in result["failed"])
    counts = f"{result['cells']} | {result['ran']} | {result['lacking']}"
    return f"| `{name}` | {counts} | {len(result['failed'])} | {failed} |"


def run_notebook(path: Path, seconds: int) -> dict:
    """Run a notebook in a process of its own; how many cells there are, and what failed."""
    environ = {**os.environ, "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "2", "NPROC": "2"}
    environ["RX_TPU_FALLBACK"] = "cpu"
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        command = [sys.executable, __file__, str(path.resolve()), "--inside"]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                command,
                cwd=folder,
                env=environ,
                stdout=log,
                stderr=subprocess.DEVNULL,
                timeout=seconds,
            )
        log.seek(0)
        lines = [json.loads(line[6:]) for line in log if line.startswith("CELL: ")]
    cells = lines[0]["cells"] if lines else 0
    failed = [(line["cell"], line["error"]) for line in lines[1:] if line["error"]]
    lacking = [entry for entry in failed if entry[1].startswith(_LACKING)]
    failed = [entry for entry in failed if entry not in lacking]
    if len(lines) <= cells:
        failed.append((len(lines) - 1, f"did not end within {seconds} s"))
    ran = len(lines) - 1 - len(failed) - len(lacking)
    return {"cells": cells, "ran": ran, "lacking": len(lacking), "failed": failed}


def run_cells(path: Path) -> None:
    """Run the cells here, and print a line for each."""
    sys.path.insert(0, str(HERE / "stand_ins"))
    sys.modules["tensorflow"] = None  # importing it is an error
    import made_up_data

    import replicax.tf as tf

    made_up_data.install(tf, ROWS.get(path.stem, made_up_data.TRAIN))
    cells = json.loads(path.read_text())["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    tell({"cells": len(sources)})
    module = {"__name__": "__main__"}
    for number, source in enumerate(sources):
        began, error = time.monotonic(), None
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                run_cell(source, f"cell {number}", module)
        except BaseException as raised:
            error = first_line(raised)
        tell({"cell": number, "error": error, "seconds": round(time.monotonic() - began, 1)})


def tell(what: dict) -> None:
    print("CELL:", json.dumps(what), file=sys.__stdout__, flush=True)


def first_line(error: BaseException) -> str:
    where = [
        frame for frame in traceback.extract_tb(error.__traceback__) if "cell " in frame.filename
    ]
    line = f" at `{where[-1].line}`" if where and where[-1].line else ""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:160]}{line}"


def run_cell(source: str, name: str, module: dict) -> None:
    first, _, rest = source.partition("\n")
    if first.startswith("%%writefile"):
        Path(first.split()[1]).write_text(changed(rest))
        return
    if first.startswith(("%%bash", "%%sh", "%%html", "%%javascript")):
        return
    source = rest if first.startswith("%%") else source
    text = changed(_SHELL.sub("", source))
    import linecache

    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    tree = ast.parse(text, name)
    exec(compile(tree, name, "exec"), module)


def changed(text: str) -> str:
    return _ALL_PICTURES.sub("reshape(-1,", _IMPORT.sub(r"\1\2 replicax.tf", text))


if __name__ == "__main__":
    main()
