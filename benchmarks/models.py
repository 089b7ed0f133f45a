"""Models of `keras.applications` and others by Replicax, TensorFlow and Keras on JAX: one table.

Each is trained, evaluated and asked for predictions on one device, in `float32` and with Keras'
`mixed_bfloat16`. The program is the same on all sides; they live side by side and take turns. All
begin with the same weights, get the same batches, and must come to the same losses.

    python benchmarks/models.py --tensorflow /path/to/python/with/tensorflow
    python benchmarks/models.py --only mobilenet,gpt16 --rounds 3
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import machine, report
from harness.measure import Case
from harness.output import end_cleanly_on_signals
from harness.sides import KERAS, OURS, TENSORFLOW
from harness.training import EVALUATE, FIT, PREDICT, Plan
from harness.workloads import MODELS
from rich.console import Console

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "models.md"
PATHS = (FIT, EVALUATE, PREDICT)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--tensorflow",
        metavar="PYTHON",
        default=os.environ.get("TENSORFLOW_PYTHON"),
        help="has TensorFlow (default: $TENSORFLOW_PYTHON; without it, left out)",
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
    options = parser.parse_args()
    options.only = options.only.split(",") if options.only else list(MODELS)
    if unknown := set(options.only) - set(MODELS):
        parser.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(MODELS)}")
    return options


def measure(options: argparse.Namespace, console: Console) -> Iterator[report.Row]:
    """The rows of each model."""
    sides = [OURS, *([TENSORFLOW] if options.tensorflow else []), KERAS]
    pythons = {TENSORFLOW: options.tensorflow}
    for name in options.only:
        model = MODELS[name].smaller(options.steps, None)
        plans = [Plan(side, name, "default", model.steps, model.batch_size) for side in sides]
        with tempfile.TemporaryDirectory(prefix="cache-") as cache:
            case = Case(plans, dict.fromkeys(sides, PATHS), pythons, cache, lambda _: None)
            with case.started():
                case.rounds(options.rounds)
        console.print(f"{name}: done")
        yield from report.Row.of(name, "default", case.found)


def table(rows: Sequence[report.Row]) -> str:
    """A line for each row, and the median of all ratios to TensorFlow."""
    heads = ["model", "types", "path", "Replicax, ms", "TensorFlow, ms", "TensorFlow ÷ ours"]
    heads += ["the same in CPU", "Keras ÷ ours"]
    lines, medians = [], []
    for row in rows:
        ours, tensorflow = row.ours, row.tensorflow
        cells = [report.milliseconds(side) for side in (ours, tensorflow)]
        cells += [report.ratio_cell(tensorflow, ours, what) for what in ("wall", "cpu")]
        cells.append(report.ratio_cell(row.sides.get(KERAS), ours, "wall"))
        lines.append([*report.name_cells(row), *cells])
        if ratios := report.ratios(tensorflow, ours, "wall"):
            medians.append(statistics.median(ratios))
    every = f"{len(medians)} rows: {statistics.median(medians):.2f}" if medians else "no row"
    return f"{report.table(heads, lines)}\n\nTensorFlow ÷ ours, median of {every}."


def main() -> None:
    options = parse()
    end_cleanly_on_signals()
    console = Console(stderr=True)
    facts, settings = machine.described(options.tensorflow, console), {"rounds": options.rounds}
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
