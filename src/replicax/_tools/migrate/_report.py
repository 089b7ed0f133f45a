"""What `replicax migrate` prints and writes: the names, what to look at, the difference."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from replicax._tools.migrate._verdicts import CHANGED, MISSING, SAME, verdict

if TYPE_CHECKING:
    from rich.console import Console

    from replicax._tools.migrate._findings import Findings, Place
    from replicax._tools.migrate._programs import Program

_TITLES = {
    MISSING: "missing: what to use instead",
    CHANGED: "here, with another meaning",
    SAME: "here, and the same",
}
_PLACES = 3  # how many places of a name are shown; the JSON has all


def print_names(console: Console, findings: Sequence[Findings]) -> None:
    """A table for each kind of name, and one of what to look at."""
    uses, folder = _uses(findings), _folder(findings)
    if folder:
        console.print(f"in {folder}")
    for kind, title in _TITLES.items():
        names = sorted(name for name in uses if verdict(name).kind == kind)
        table = _table(f"{title} ({len(names)})")
        for name in names:
            places = _shortened(uses[name], folder)
            what = verdict(name).what
            table.add_row(name, f"{what}\n{places}" if what else places)
        if names:
            console.print(table)
    found: dict[str, list[Place]] = {}
    for place, text in (check for one in findings for check in one.checks):
        found.setdefault(text, []).append(place)
    if found:
        table = _table(f"to look at ({len(found)})")
        for text, (first, *others) in found.items():
            also = f"\nalso {_shortened(others, folder)}" if others else ""
            table.add_row(_short(first, folder), text + also)
        console.print(table)


def _folder(findings: Sequence[Findings]) -> str:
    """Where all programs are, with a slash; nothing for one program, which says it itself."""
    files = [one.file for one in findings]
    return os.path.join(os.path.commonpath(files), "") if len(files) > 1 else ""


def _short(place: Place, folder: str) -> str:
    return str(place).removeprefix(folder)


def _table(title: str) -> Table:
    table = Table(
        title=title, title_justify="left", title_style="bold", box=None, show_header=False
    )
    table.add_column(no_wrap=True, overflow="fold")
    table.add_column(overflow="fold")
    return table


def _uses(findings: Sequence[Findings]) -> dict[str, list[Place]]:
    uses: dict[str, list[Place]] = {}
    for one in findings:
        for name, places in one.uses.items():
            uses.setdefault(name, []).extend(places)
    return uses


def _shortened(places: Sequence[Place], folder: str) -> str:
    """The first places; of one file its name once: "train.py:3, 7 +2"."""
    shown: list[str] = []
    for index, place in enumerate(places[:_PLACES]):
        before = places[index - 1] if index else None
        same = before is not None and (before.file, before.cell) == (place.file, place.cell)
        shown.append(str(place.line) if same else _short(place, folder))
    more = len(places) - _PLACES
    return ", ".join(shown) + (f" +{more}" if more > 0 else "")


def summary(findings: Sequence[Findings], unread: Sequence[str]) -> str:
    """The share of names and of files that run."""
    names = list(_uses(findings))
    kinds = Counter(verdict(name).kind for name in names)
    with_names = [one for one in findings if one.uses]
    if not names:
        return "No name of TensorFlow or Keras is used."
    run = sum(one.runs for one in with_names)
    here = len(names) - kinds[MISSING]
    kept = f"{kinds[SAME]} the same, {kinds[CHANGED]} with another meaning"
    parts = [
        f"{here} of {len(names)} names are here ({_share(here, len(names))}): {kept}.",
        f"{run} of {len(with_names)} programs ({_share(run, len(with_names))}) miss nothing.",
    ]
    if unread:
        parts.append(f"{len(unread)} could not be read.")
    return "\n".join(parts)


def _share(part: int, whole: int) -> str:
    return f"{100 * part // whole} %"


def as_json(findings: Sequence[Findings], unread: Sequence[str]) -> dict[str, Any]:
    """Everything, as data."""
    uses = _uses(findings)
    kinds = Counter(verdict(name).kind for name in uses)
    return {
        "names": [
            {
                "name": name,
                "kind": verdict(name).kind,
                "what": verdict(name).what,
                "places": [_place(place) for place in uses[name]],
            }
            for name in sorted(uses)
        ],
        "checks": [
            {**_place(place), "text": text} for one in findings for place, text in one.checks
        ],
        "files": [
            {"file": one.file, "runs": one.runs, "rewritten": one.changed} for one in findings
        ],
        "unread": list(unread),
        "counts": {kind: kinds[kind] for kind in (SAME, CHANGED, MISSING)},
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "cell": place.cell}


def differences(program: Program, findings: Findings) -> Iterator[str]:
    """What is rewritten, line by line; of a notebook cell by cell."""
    pieces = zip(program.pieces, findings.before, findings.after, strict=True)
    for piece, before, after in pieces:
        if before == after:
            continue
        name = findings.file if piece.cell is None else f"{findings.file}[{piece.cell}]"
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), name, f"{name} (rewritten)", n=1, lineterm=""
        )
        yield from lines
