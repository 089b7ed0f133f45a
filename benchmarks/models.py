"""Models of `keras.applications` and others by Replicax, TensorFlow and Keras on JAX: one table.

Each is trained, evaluated and asked for predictions on one device, in `float32` and with Keras'
`mixed_bfloat16`. The program is the same on all sides; they live side by side and take turns. All
begin with the same weights, get the same batches, and must come to the same losses.

    python benchmarks/models.py --tensorflow /path/to/python/with/tensorflow
    python benchmarks/models.py --only mobilenet,gpt16 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness import machine, report
from harness.measure import Case, Found, Measured
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


def measure(options: argparse.Namespace, console: Console) -> Iterator[tuple[str, Found]]:
    """What was found of each model, by path and side."""
    sides = [OURS, *([TENSORFLOW] if options.tensorflow else []), KERAS]
    pythons = {TENSORFLOW: options.tensorflow}
    for name in options.only:
        model = MODELS[name].smaller(options.steps, None)
        plans = [Plan(side, name, "default", model.steps, model.batch_size) for side in sides]
        with tempfile.TemporaryDirectory(prefix="cache-") as cache:
            case = Case(plans, dict.fromkeys(sides, PATHS), pythons, cache, lambda _: None)
            with case.started():
                case.rounds(options.rounds)
        for measured in (one for of in case.found.values() for one in of.values()):
            measured.tolerance = model.tolerance
        console.print(f"{name}: done")
        yield name, case.found


def read(paths: dict[str, Any]) -> Found:
    """What was found of a model before, from its JSON."""
    return {
        path: {side: Measured(**told) for side, told in sides.items()}
        for path, sides in paths.items()
    }


def markdown(found: dict[str, Found], facts: dict[str, Any], rounds: int) -> str:
    heads = ["model", "types", "path", "Replicax, ms", "TensorFlow, ms", "TensorFlow ÷ ours"]
    heads += ["the same in CPU", "Keras ÷ ours"]
    lines, failed, every = [], [], []
    for name, paths in found.items():
        for path, sides in paths.items():
            ours, tensorflow = sides.get(OURS), sides.get(TENSORFLOW)
            title = MODELS[name].title, MODELS[name].precision.removeprefix("mixed_"), path
            times = [report.milliseconds(side) for side in (ours, tensorflow)]
            cells = [report.ratio_cell(tensorflow, ours, what) for what in ("wall", "cpu")]
            cells.append(report.ratio_cell(sides.get(KERAS), ours, "wall"))
            lines.append([*title, *times, *cells])
            ratios = report.ratios(tensorflow, ours, "wall")
            every += [statistics.median(ratios)] if ratios else []
            for side, measured in sides.items():
                told = measured.error or [f"{loss:.5g}" for loss in measured.losses]
                if measured.error or report.ratio_cell(measured, ours, "wall") == report.UNEQUAL:
                    failed.append(f"- {', '.join(title)}: {side}: {told}")
    parts = [f"{machine.one_line(facts)}; {rounds} rounds; load before: {facts['load'][0]}."]
    parts.append(report.table(heads, lines))
    if every:
        parts.append(
            f"TensorFlow ÷ ours, median of {len(every)} rows: {statistics.median(every):.2f}."
        )
    if failed:
        parts += [
            f"**What failed, or came to other losses ({report.UNEQUAL}).**",
            "\n".join(failed),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    options = parse()
    end_cleanly_on_signals()
    console = Console(stderr=True)
    facts = machine.describe(options.tensorflow)
    options.output.mkdir(parents=True, exist_ok=True)
    kept, found = options.output / "models.json", {}
    if options.add and kept.exists():
        found = {name: read(paths) for name, paths in json.loads(kept.read_text()).items()}
    for name, new in measure(options, console):
        found[name] = new
        found = {one: found[one] for one in MODELS if one in found}
        kept.write_text(json.dumps(found, indent=1, default=asdict) + "\n")
        text = markdown(found, facts, options.rounds)
        (options.output / "models.md").write_text(text)
        if options.write:
            made = report.put_between_markers(PAGE.read_text(), text, "make bench-models")
            PAGE.write_text(made)
    print((options.output / "models.md").read_text(), end="")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
