"""Replicax beside TensorFlow, hand-written JAX and Keras' `DataParallel`: one table.

Five models are trained under each strategy by `fit` and by a custom loop. Each side is a program
of its own, in processes of its own; the sides of a case live side by side and take turns, so that
what else the machine does meets all of them. All begin with the same weights, get the same batches
in the same order, and must have the same losses.

    python benchmarks/table.py --tensorflow /path/to/python/with/tensorflow
    python benchmarks/table.py --only cnn,mirrored,fit --rounds 3
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import machine, report
from harness.measure import Case
from harness.output import end_cleanly_on_signals
from harness.plot import draw
from harness.sides import HAND, KERAS, LEGACY, OURS, TENSORFLOW, TORCH
from harness.training import FIT, LOOP, MIRRORED, SERVERS, STRATEGIES, WORKERS, Plan
from harness.workloads import WORKLOADS
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "measurements_performance.md"
PICTURE = ROOT / "docs" / "images" / "performance.png"
QUICK = "mlp,cnn,default,mirrored"
# Strategies that have one device are alike, and so are those that keep copies on several: two
# models show it. Of servers, see benchmarks/parameter_server.py.
FEW = {"one": ("mlp",), "central": ("mlp", "cnn"), SERVERS: ("mlp", "clicks")}
# In TensorFlow, Keras 3 fails where a worker is another process; under CentralStorage, `fit` comes
# to other losses than on one device.
WITHOUT_KERAS_3 = (WORKERS, SERVERS, "central")
ALSO_SECOND_START = ("default", MIRRORED, WORKERS)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--tensorflow",
        metavar="PYTHON",
        default=os.environ.get("TENSORFLOW_PYTHON"),
        help="has TensorFlow and tf_keras (default: $TENSORFLOW_PYTHON; without it, left out)",
    )
    parser.add_argument(
        "--torch",
        metavar="PYTHON",
        default=os.environ.get("TORCH_PYTHON"),
        help="has PyTorch and Keras (default: $TORCH_PYTHON; without it, left out)",
    )
    names = ", ".join([*WORKLOADS, *STRATEGIES, FIT, LOOP])
    parser.add_argument("--only", default="", metavar="NAME,…", help=f"some of: {names}")
    parser.add_argument("--peers", default="", metavar="NAME,…", help="sides beside Replicax")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (default 5)")
    parser.add_argument("--starts", type=int, default=3, help="of each program (default 3)")
    parser.add_argument("--steps", type=int, help="of a round (default: the workload's)")
    parser.add_argument("--batch-size", type=int, help="of all replicas (default: the workload's)")
    parser.add_argument("--quick", action="store_true", help=f"3 rounds of {QUICK}")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT / "build" / "benchmarks",
        metavar="FOLDER",
        help="for table.json and table.md (default build/benchmarks)",
    )
    parser.add_argument(
        "--add", action="store_true", help="keep the rows of table.json that are not measured"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs, too")
    parser.add_argument("--plot", action="store_true", help="draw the ratios, too")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.only = 3, options.only or QUICK
    options.only = chosen(options.only, [*WORKLOADS, *STRATEGIES, FIT, LOOP])
    options.peers = chosen(options.peers, [TENSORFLOW, HAND, KERAS, TORCH])
    return options


def chosen(names: str, known: Sequence[str]) -> set[str]:
    found = {name for name in names.split(",") if name}
    if found - set(known):
        raise SystemExit(f"{', '.join(sorted(found - set(known)))}: not one of {', '.join(known)}")
    return found


@dataclass(frozen=True)
class Choice:
    """A workload, a strategy and the ways to train that were asked for."""

    workload: str
    strategy: str
    paths: tuple[str, ...]


def choices(only: set[str]) -> Iterator[Choice]:
    """Those named; of a kind of which none is named, all that the table has."""

    def some(known: Sequence[str]) -> list[str]:
        return [name for name in known if name in only] or list(known)

    for workload in some(list(WORKLOADS)):
        for strategy in some(list(STRATEGIES)):
            named = strategy in only and workload in only
            if named or workload in FEW.get(strategy, WORKLOADS):
                yield Choice(workload, strategy, tuple(some([FIT, LOOP])))


def plans(options: argparse.Namespace, choice: Choice) -> tuple[list[Plan], dict[str, Any]]:
    """What each side is told, and the ways in which it trains."""
    workload = WORKLOADS[choice.workload].smaller(options.steps, options.batch_size)

    def wanted(side: str) -> bool:
        return not options.peers or side in options.peers

    paths = {OURS: choice.paths}
    if options.tensorflow and wanted(TENSORFLOW):
        paths[LEGACY if choice.strategy in WITHOUT_KERAS_3 else TENSORFLOW] = choice.paths
    if choice.strategy != SERVERS and wanted(HAND):
        paths[HAND] = choice.paths
    if choice.strategy in ("default", MIRRORED) and FIT in choice.paths and wanted(KERAS):
        paths[KERAS] = (FIT,)
    if options.torch and choice.strategy == WORKERS and LOOP in choice.paths and wanted(TORCH):
        paths[TORCH] = (LOOP,)  # by DDP
    told = (choice.workload, choice.strategy, workload.steps, workload.batch_size)
    return [Plan(side, *told) for side in paths], paths


def measure(options: argparse.Namespace, console: Console) -> Iterator[report.Row]:
    """The rows of each case; one may come again, with more. A progress bar on a terminal."""
    pythons = {TENSORFLOW: options.tensorflow, LEGACY: options.tensorflow, TORCH: options.torch}
    todo = list(choices(options.only))
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(todo))
        for choice in todo:
            name = f"{choice.workload}, {choice.strategy}"

            def say(text: str, name: str = name) -> None:
                progress.update(bar, description=f"{name}: {text}")

            told, paths = plans(options, choice)
            # Compiled programs are kept for no other start.
            with tempfile.TemporaryDirectory(prefix="cache-") as cache:
                case = Case(told, paths, pythons, cache, say)
                with case.started():
                    case.rounds(options.rounds)
                yield from report.Row.of(choice.workload, choice.strategy, case.found)
                if options.starts > 1:
                    case.starts(options.starts - 1, second=choice.strategy in ALSO_SECOND_START)
                    yield from report.Row.of(choice.workload, choice.strategy, case.found)
            progress.advance(bar)
            if not console.is_terminal:
                console.print(f"{name}: done")


def write(options: argparse.Namespace, facts: dict[str, Any], rows: list[report.Row]) -> None:
    """The JSON, the table, and the page."""
    settings = {"rounds": options.rounds}
    report.keep(options.output / "table.json", rows, facts, settings)
    made = report.markdown(rows, facts, settings)
    (options.output / "table.md").write_text(made)
    if options.write:
        PAGE.write_text(report.put_between_markers(PAGE.read_text(), made))


def main() -> None:
    options = parse()
    end_cleanly_on_signals()
    console = Console(stderr=True)
    facts = machine.described(options.tensorflow, console, options.torch)
    rows = report.kept(options.output / "table.json") if options.add else []
    for row in measure(options, console):
        rows = report.merged(rows, [row])
        write(options, facts, rows)  # what was measured is not lost if the next case is stopped
    if options.plot:
        draw((PICTURE if options.write else options.output / "table.png"), rows)
    print((options.output / "table.md").read_text(), end="")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
