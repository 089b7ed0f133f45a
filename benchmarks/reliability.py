"""Provoke every fault that Replicax promises to survive or to name, and write down what came of it.

Each fault is tried in a process of its own. The table says what happened, how many seconds passed
until it was noticed, who was named and what was lost. With several rounds, a fault whose outcome
differs between them is marked, and the exit code is 1.

    python benchmarks/reliability.py --only strangers
    python benchmarks/reliability.py --rounds 3 --write
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from faults import LINES, all_faults
from faults.trial import LIMIT_SECONDS, try_apart
from harness import machine, report
from harness.output import end_cleanly_on_signals
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from faults.fault import Fault, Outcome

PAGE = Path(__file__).parents[1] / "docs" / "measurements_faults.md"
COMMAND = "make faults"
HEADS = ("fault", "outcome", "who or what was named", "lost", "seconds to notice")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="WORDS", help="faults whose text has these")
    parser.add_argument("--rounds", type=int, default=1, help="how often to try each (default 1)")
    parser.add_argument("--list", action="store_true", help="print the faults, try none")
    parser.add_argument(
        "--write", action="store_true", help=f"put what was found into docs/{PAGE.name}"
    )
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, metavar="SECONDS", help="for one trial"
    )
    return parser.parse_args(arguments)


def chosen(words: str) -> list[Fault]:
    """The faults whose line or sentence has the words; all of them without words."""
    found = [fault for fault in all_faults() if words in f"{fault.line}: {fault.what}"]
    if not found:
        raise SystemExit(f"No fault has the words {words!r}; --list prints them all.")
    return found


def without_seconds(outcome: Outcome) -> tuple[object, ...]:
    return outcome.outcome, outcome.is_as_expected, outcome.named, outcome.lost


def agree(outcomes: Sequence[Outcome]) -> bool:
    """Whether all rounds had one outcome, and the promised one."""
    return len(set(map(without_seconds, outcomes))) == 1 and outcomes[0].is_as_expected


def seconds_of(outcomes: Sequence[Outcome]) -> str:
    """The median, and the range of several rounds."""
    taken = sorted(o.seconds for o in outcomes if o.seconds is not None)
    if not taken:
        return "at once"
    median = f"{statistics.median(taken):.1f}"
    return median if len(taken) == 1 else f"{median} ({taken[0]:.1f}–{taken[-1]:.1f})"


def row(fault: Fault, outcomes: Sequence[Outcome]) -> list[str]:
    """The cells of a fault; what was not promised, or not the same in all rounds, is bold."""
    texts = list(dict.fromkeys(outcome.outcome for outcome in outcomes))
    told = "; ".join(texts) if agree(outcomes) else f"**not as promised: {'; or '.join(texts)}**"
    last = outcomes[-1]
    return [fault.what, told, last.named or "–", last.lost, seconds_of(outcomes)]


def markdown(found: dict[Fault, list[Outcome]], rounds: int) -> str:
    """A table for each line."""
    facts = machine.describe(None)
    parts = [f"{machine.one_line(facts)}; {rounds} rounds.", ""]
    for line in LINES:
        if rows := [row(fault, tried) for fault, tried in found.items() if fault.line == line]:
            parts += [f"### {line.capitalize()}", "", report.table(HEADS, rows), ""]
    return "\n".join(parts)


def with_rows(table: str, found: dict[Fault, list[Outcome]]) -> str:
    """A table of all faults, with the rows of those that were tried again."""
    lines = table.splitlines()
    for fault, tried in found.items():
        places = [n for n, line in enumerate(lines) if line.startswith(f"| {fault.what} |")]
        if len(places) != 1:
            raise SystemExit(f"No row of the table is about {fault.what!r}; write it whole first.")
        lines[places[0]] = report.table(HEADS, [row(fault, tried)]).splitlines()[-1]
    return "\n".join(lines)


def try_all(faults: Sequence[Fault], rounds: int, limit: float) -> dict[Fault, list[Outcome]]:
    """Try each fault once a round. A progress bar on a terminal, else a line for each trial."""
    found: dict[Fault, list[Outcome]] = {fault: [] for fault in faults}
    console = Console(stderr=True)
    columns = BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=rounds * len(faults))
        for number in range(rounds):
            for fault in faults:
                progress.update(bar, description=fault.what)
                found[fault].append(outcome := try_apart(fault, limit))
                progress.advance(bar)
                mark = "ok" if outcome.is_as_expected else "NOT AS PROMISED"
                console.print(f"{number + 1}: {mark}: {fault.what}: {outcome.outcome}")
    return found


def main() -> int:
    options = parse()
    end_cleanly_on_signals()
    faults = chosen(options.only)
    if options.list:
        print("\n".join(f"{fault.line}: {fault.what}" for fault in faults))
        return 0
    found = try_all(faults, options.rounds, options.limit)
    made = markdown(found, options.rounds)
    if options.write and options.only:
        PAGE.write_text(with_rows(PAGE.read_text(), found) + "\n")
    elif options.write:
        PAGE.write_text(report.put_between_markers(PAGE.read_text(), made, COMMAND))
    print(made)
    return 0 if all(map(agree, found.values())) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
