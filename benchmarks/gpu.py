"""Replicax on one NVIDIA GPU, beside plain Keras on JAX, JAX written by hand, and PyTorch.

Each model is trained in `float32`, in TF32 or with Keras' `mixed_bfloat16`. All sides begin with
the same weights, get the same batches from the host's memory, and must come to the same losses.
The sides of several models start and compile at once; then they take turns, with nothing else
running. What was measured is written after each model.

    python benchmarks/gpu.py --seconds 540
    python benchmarks/gpu.py --only resnet50,gpt100m --types bfloat16 --add
    python benchmarks/gpu.py --dry-run
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import machine, report
from harness.measure import SIDE, Case
from harness.output import end_cleanly_on_signals, say
from harness.sides import COMPILED, HAND, KERAS, OURS, TORCH, of_torch
from harness.training import EVALUATE, FIT, PREDICT, Plan
from harness.workloads import EVERY, MEMORY, ON_GPU

ROOT = Path(__file__).parents[1]
TYPES = ("float32", "tf32", "bfloat16")
PATHS = {
    OURS: (FIT, EVALUATE, PREDICT),
    HAND: (FIT,),
    **dict.fromkeys((KERAS, TORCH, COMPILED), (FIT, EVALUATE, PREDICT)),
}
COMPARED = {HAND: "hand", KERAS: "Keras", TORCH: "PyTorch", COMPILED: "compiled"}
TO_CLOSE = 10  # seconds to end what runs, and to write
LEAST, SLACK = 4, 1.25  # GB that JAX may take in any case, and of what a side needs
LEGEND = (
    "**A step.** Wall milliseconds, in brackets CPU milliseconds; ratios are medians over rounds, "
    "in brackets their range: above 1, Replicax is faster. Of the peak: a step's operations and "
    "the bytes that its program moves, by Replicax's time, as shares of a large product's "
    "operations per second in these types and of a large copy's bytes."
)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    torch = sys.executable if importlib.util.find_spec("torch") else os.environ.get("TORCH_PYTHON")

    def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
        def names(text: str) -> list[str]:
            if unknown := set(text.split(",")) - set(known):
                listed = f"{', '.join(sorted(unknown))}: not one of {', '.join(known)}"
                raise argparse.ArgumentTypeError(listed)
            return text.split(",")

        return names

    add = parser.add_argument
    add("--torch", metavar="PYTHON", default=torch, help="has PyTorch and Keras (default: this)")
    add("--only", type=some_of(list(MEMORY)), help=f"some of: {', '.join(MEMORY)}")
    add(
        "--types",
        type=some_of(TYPES),
        help=f"some of {', '.join(TYPES)} (default: without the first)",
    )
    add("--paths", type=some_of(PATHS[OURS]), default=[FIT], help="fit (default),evaluate,predict")
    add("--sides", type=some_of(list(PATHS)), default=list(PATHS), help="by default all")
    add("--rounds", type=int, help="turns of each side (default 5)")
    add("--seconds", type=float, default=math.inf, help="after which it stops with what it has")
    add("--at-once", type=int, default=os.cpu_count(), help="sides that live (default: cores)")
    add("--output", type=Path, help="for gpu.json, gpu.md (default build/benchmarks)")
    add("--add", action="store_true", help="keep the rows that are not measured")
    add("--dry-run", action="store_true", help="a few small steps of two models on the CPU")
    options = parser.parse_args(arguments)
    few = options.dry_run
    options.only = options.only or (["mlp", "dlrm"] if few else list(MEMORY))
    options.types = options.types or list(TYPES[1:])
    options.rounds = options.rounds or (2 if few else 5)
    folder = ROOT / "build" / "benchmarks"
    # A dry run leaves alone what was measured.
    options.output = options.output or (folder / "dry" if few else folder)
    own = dict.fromkeys((OURS, HAND, KERAS), sys.executable)
    options.pythons = {**own, **of_torch(options.torch, say)}
    options.sides = [side for side in options.sides if side in options.pythons]
    return options


def peaks(options: argparse.Namespace) -> dict[str, Any]:
    """The platform, and what it can do: operations a second in each type, and bytes."""
    size = 256 if options.dry_run else 8192
    shares = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    told = [sys.executable, SIDE, "--peaks", str(size)]
    done = subprocess.run(told, env=shares, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def cases(options: argparse.Namespace, cache: str, memory: float, until: float) -> dict[str, Case]:
    """What there is to measure, by the workload's name."""
    sides, found = {side: options.pythons[side] for side in options.sides}, {}
    paths = {side: [p for p in options.paths if p in PATHS[side]] for side in sides}
    for name in (f"{model}-{types}" for model in options.only for types in options.types):
        told = (3, 4) if options.dry_run else (ON_GPU[name].steps, ON_GPU[name].batch_size)
        device = "cpu" if options.dry_run else "gpu"
        share = min(0.9, max(LEAST, SLACK * needed(name)) / memory)
        plans = [Plan(side, name, "one", *told, device, share) for side in sides if paths[side]]
        found[name] = Case(plans, paths, sides, cache, lambda _: None, until)
    return found


def needed(name: str) -> float:
    """GB of a GPU that a side takes."""
    return MEMORY[name.partition("-")[0]]


def waves(names: Sequence[str], sides: int, at_once: int, memory: float) -> list[list[str]]:
    """Names that live at once: each goes to the first wave that has room for its sides."""
    found: list[list[str]] = []
    for name in names:
        for wave in found:
            taken = sum(map(needed, [*wave, name]))
            if sides * (len(wave) + 1) <= at_once and sides * taken <= memory:
                wave.append(name)
                break
        else:
            found.append([name])
    return found


def measure(options: argparse.Namespace, facts: dict[str, Any]) -> Iterator[list[report.Row]]:
    """The rows of each model, as they are measured."""
    begin = time.monotonic()
    until = begin + options.seconds - TO_CLOSE
    megabytes = re.search(r"(\d+) MiB", facts.get("gpu", ""))
    memory = int(megabytes[1]) / 1000 if megabytes else 80.0
    with tempfile.TemporaryDirectory(prefix="cache-") as cache:
        # What one side has found to be the fastest kernel, others need not try.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = cache
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "1e9"
        every = cases(options, cache, memory, until)
        starts: list[float] = []
        for wave in waves(list(every), len(options.sides), options.at_once, 0.9 * memory):
            started = time.monotonic()
            if started + min(starts, default=0) > until:
                break
            some = [every[name] for name in wave]
            say(f"{time.monotonic() - begin:.0f} s: {', '.join(wave)} start")
            with Case.together(some, options.at_once):
                starts.append(time.monotonic() - started)
                for name, case in zip(wave, some, strict=True):
                    say(f"{time.monotonic() - begin:.0f} s: {name} in turns")
                    case.rounds(options.rounds)
                    case.end()
                    rows = report.Row.of(name, "one", case.found)
                    for line in report.failures(rows):
                        say(line)
                    yield [row for row in rows if any(one.wall for one in row.sides.values())]


def table(rows: Sequence[report.Row], peaks: dict[str, Any]) -> str:
    """A line for each row, and the median of all ratios to each other side."""
    heads = ["model", "types", "path", "Replicax, ms", "hand ÷ ours", "Keras ÷ ours"]
    heads += ["PyTorch ÷ ours", "compiled ÷ ours", "of the peak: FLOP/s, bytes/s"]
    lines = []
    for row in rows:
        others = (row.sides.get(side) for side in COMPARED)
        ratios = [report.ratio_cell(other, row.ours, "wall") for other in others]
        shown = report.milliseconds(row.ours), *ratios, of_peak(row, rows, peaks)
        lines.append([*report.name_cells(row), *shown])
    medians = [f"{name} ÷ ours, {report.median(rows, side)}" for side, name in COMPARED.items()]
    return f"{report.table(heads, lines)}\n\n{'; '.join(medians)}."


def of_peak(row: report.Row, rows: Sequence[report.Row], peaks: dict[str, Any]) -> str:
    """By our time: the step's operations and bytes as shares of what the device can do."""
    if row.ours is None or not row.ours.wall or row.path != FIT:
        return report.NOTHING
    seconds, model = statistics.median(row.ours.wall), EVERY[row.workload]
    costs = {one.workload: one.sides[HAND].cost for one in rows if HAND in one.sides}
    # The operations of a model are the same in all types, and not known in each.
    alike = [cost for name, cost in costs.items() if EVERY[name].title == model.title]
    operations = max((cost.get("flops", 0) for cost in alike), default=0)
    moved = costs.get(row.workload, {}).get("bytes", 0)
    shares = operations / seconds / peaks[model.types], moved / seconds / peaks["bytes"]
    return ", ".join(f"{share:.0%}" if share else report.NOTHING for share in shares)


def page(rows: Sequence[report.Row], facts: dict[str, Any], settings: dict[str, Any]) -> str:
    found = settings["peaks"]
    rates = [f"{found[types] / 1e12:.3g} TFLOP/s in {types}" for types in TYPES]
    measured = f"Peaks: {', '.join(rates)}; {found['bytes'] / 1e9:.4g} GB/s."
    return report.page(rows, facts, settings, LEGEND, table(rows, found), measured)


def main() -> None:
    options = parse()
    end_cleanly_on_signals()
    if options.dry_run:
        os.environ |= {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
    begin = time.monotonic()
    facts = machine.describe(None, options.torch)
    settings = {"rounds": options.rounds, "peaks": peaks(options)}
    if settings["peaks"]["platform"] == "cpu" and not options.dry_run:
        sys.exit("JAX finds no GPU here: install its CUDA wheels, or try --dry-run")
    options.seconds -= time.monotonic() - begin
    file = options.output / "gpu.json"
    rows = report.kept(file) if options.add else []
    for found in measure(options, facts):
        rows = report.merged(rows, found)
        report.keep(file, rows, facts, settings)
        file.with_suffix(".md").write_text(page(rows, facts, settings))
    print(file.with_suffix(".md").read_text() if rows else "nothing was measured", end="\n")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
