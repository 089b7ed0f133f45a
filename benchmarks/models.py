"""Models of `keras.applications` and others by Replicax, TensorFlow, PyTorch and Keras on JAX.

Each is trained, evaluated and asked for predictions on one device, in `float32` and with Keras'
`mixed_bfloat16`. The program is the same on all sides but PyTorch, which has its own layers and
loops; the sides live side by side and take turns. All begin with the same weights, get the same
batches, and must come to the same losses.

    python benchmarks/models.py --tensorflow /path/to/python/with/tensorflow
    python benchmarks/models.py --torch /path/to/python/with/torch/and/keras
    python benchmarks/models.py --only mobilenet,gpt16 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import machine, report
from harness.measure import Case
from harness.output import end_cleanly_on_signals
from harness.sides import COMPILED, KERAS, OURS, TENSORFLOW, TORCH, of_torch
from harness.training import EVALUATE, FIT, LOOP, PREDICT, Plan
from harness.workloads import MODELS, Workload
from rich.console import Console

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measurements_performance.md"
PATHS = (FIT, EVALUATE, PREDICT)
COMPARED = {TENSORFLOW: "TensorFlow", TORCH: "PyTorch", COMPILED: "compiled", KERAS: "Keras"}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--tensorflow",
        metavar="PYTHON",
        default=os.environ.get("TENSORFLOW_PYTHON"),
        help="has TensorFlow (default: $TENSORFLOW_PYTHON; without it, left out)",
    )
    parser.add_argument(
        "--torch",
        metavar="PYTHON",
        default=os.environ.get("TORCH_PYTHON"),
        help="has PyTorch and Keras (default: $TORCH_PYTHON; without it, left out)",
    )
    parser.add_argument("--only", metavar="NAME,…", help=f"some of: {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default 5)")
    parser.add_argument("--steps", type=int, help="of a round (default: the model's)")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "benchmarks",
        metavar="FOLDER",
        help="for models.json and models.md (default build/benchmarks)",
    )
    parser.add_argument("--add", action="store_true", help="keep the rows that are not measured")
    parser.add_argument("--write", action="store_true", help="put the table into docs, too")
    options = parser.parse_args(arguments)
    options.only = options.only.split(",") if options.only else list(MODELS)
    if unknown := set(options.only) - set(MODELS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(MODELS)}")
    return options


def sides(options: argparse.Namespace, console: Console) -> dict[str, str]:
    """The sides, each with the Python that runs it."""
    found = {OURS: sys.executable, TENSORFLOW: options.tensorflow}
    found |= {**of_torch(options.torch, console.print), KERAS: sys.executable}
    return {side: python for side, python in found.items() if python}


def ways(model: Workload, pythons: Sequence[str]) -> dict[str, Sequence[str]]:
    """How each side runs a model: one that needs a custom loop, on those that have one for it."""
    if model.discriminator:
        return {side: (LOOP,) for side in pythons if side not in (COMPILED, KERAS)}
    return dict.fromkeys(pythons, PATHS)


def measure(options: argparse.Namespace, console: Console) -> Iterator[report.Row]:
    """The rows of each model."""
    pythons = sides(options, console)
    for name in options.only:
        model = MODELS[name].smaller(options.steps, None)
        paths = ways(model, pythons)
        plans = [Plan(side, name, "default", model.steps, model.batch_size) for side in paths]
        with tempfile.TemporaryDirectory(prefix="cache-") as cache:
            case = Case(plans, paths, pythons, cache, lambda _: None)
            with case.started():
                case.rounds(options.rounds)
        console.print(f"{name}: done")
        yield from report.Row.of(name, "default", case.found)


def table(rows: Sequence[report.Row]) -> str:
    """A line for each row, and the median of all ratios to each other side."""
    heads = ["model", "types", "path", "Replicax, ms", "TensorFlow, ms", "TensorFlow ÷ ours"]
    heads += ["the same in CPU", "PyTorch ÷ ours", "compiled ÷ ours", "Keras ÷ ours"]
    lines = []
    for row in rows:
        ours, tensorflow = row.ours, row.tensorflow
        cells = [report.milliseconds(side) for side in (ours, tensorflow)]
        cells += [report.ratio_cell(tensorflow, ours, what) for what in ("wall", "cpu")]
        others = (row.sides.get(side) for side in (TORCH, COMPILED, KERAS))
        cells += [report.ratio_cell(other, ours, "wall") for other in others]
        lines.append([*report.name_cells(row), *cells])
    medians = [f"{name} ÷ ours, {report.median(rows, side)}" for side, name in COMPARED.items()]
    return f"{report.table(heads, lines)}\n\n{'; '.join(medians)}."


def main() -> None:
    options = parse()
    end_cleanly_on_signals()
    console = Console(stderr=True)
    facts = machine.described(options.tensorflow, console, options.torch)
    settings = {"rounds": options.rounds}
    file = options.output / "models.json"
    rows = report.kept(file) if options.add else []
    for row in measure(options, console):
        rows = report.merged(rows, [row])
        report.keep(file, rows, facts, settings)
        made = report.page(rows, facts, settings, table(rows))
        file.with_suffix(".md").write_text(made)
        if options.write:
            page = report.put_between_markers(PAGE.read_text(), made, "make bench-models")
            PAGE.write_text(page)
    print(file.with_suffix(".md").read_text(), end="")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
