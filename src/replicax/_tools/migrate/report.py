"""What is found in programs, and what `replicax migrate` prints and writes of it."""

from __future__ import annotations

import ast
import difflib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from libcst import ParserSyntaxError
from rich.table import Table

from replicax._core.errors import UsageError
from replicax._tools.migrate.imports import rewritten
from replicax._tools.migrate.names import (
    CHANGED,
    MISSING,
    SAME,
    WHOLE,
    Names,
    Verdict,
    checks,
    verdict,
)
from replicax._tools.migrate.programs import refused

if TYPE_CHECKING:
    from rich.console import Console

    from replicax._tools.migrate.programs import Piece, Program

_TITLES = {
    MISSING: "missing: what to use instead",
    CHANGED: "here, with another meaning",
    SAME: "here, and the same",
}
_PLACES = 3  # how many places of a name are shown; the JSON has all


@final
@dataclass(frozen=True)
class Place:
    """Where something is.

    Args:
        file: The file, as it was named.
        line: The line, in the cell of a notebook.
        cell: The number of the cell, from 1; None in a script.
    """

    file: str
    line: int
    cell: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.file}:{self.line}"
            if self.cell is None
            else (f"{self.file}[{self.cell}]:{self.line}")
        )


@final
@dataclass(frozen=True)
class Findings:
    """What is found in a program.

    Args:
        file: The file, as it was named.
        uses: Each name, and where it is used.
        checks: What to look at, and where.
        before: The sources of its pieces.
        after: The same, rewritten.
    """

    file: str
    uses: dict[str, list[Place]] = field(default_factory=dict)
    checks: list[tuple[Place, str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether something is rewritten."""
        return self.before != self.after

    @property
    def runs(self) -> bool:
        """Whether nothing is missing that it uses."""
        return all(what.kind != MISSING for _, what in self.verdicts())

    def verdicts(self) -> Iterator[tuple[str, Verdict]]:
        """Each name with what becomes of it."""
        yield from ((name, verdict(name)) for name in self.uses)


def look(program: Program) -> Findings:
    """Find what a program uses, and rewrite it.

    Raises:
        UsageError: If it is no Python, or nested too deeply for Python's and LibCST's parsers.
    """
    with refused(program.path):
        return _found(program)


def _found(program: Program) -> Findings:
    findings = Findings(str(program.path))
    shared, chosen = Names(), False
    for piece in program.pieces:
        names = Names() if piece.alone else shared
        tree = _parsed(piece, findings)
        if tree is None:
            continue
        for use in names.uses(tree):
            if use.name in WHOLE:  # the import of a package is no name of it
                continue
            place = Place(findings.file, use.line + piece.offset, piece.cell)
            findings.uses.setdefault(use.name, []).append(place)
        if names.known:
            for check in checks(tree, names):
                place = Place(findings.file, check.line + piece.offset, piece.cell)
                findings.checks.append((place, check.text))
        new = _rewritten(piece, findings.file, chosen=chosen and not piece.alone)
        chosen = chosen or "replicax" in new or "KERAS_BACKEND" in new
        findings.before.append(piece.original)
        findings.after.append(piece.source(new))
    return findings


def _parsed(piece: Piece, findings: Findings) -> ast.Module | None:
    try:
        return ast.parse(piece.text)
    except SyntaxError as error:
        place = Place(findings.file, (error.lineno or 1) + piece.offset, piece.cell)
        if piece.cell is not None:  # the other cells can be read
            findings.checks.append((place, "This cell is no Python 3; it is left as it is."))
            findings.before.append(piece.original)
            findings.after.append(piece.original)
            return None
        raise UsageError(
            "A program that is migrated is Python 3. Received: "
            f"{place}: {error.msg}. Its names cannot be found. Mend it, or run 2to3 first."
        ) from error


def _rewritten(piece: Piece, file: str, *, chosen: bool) -> str:
    try:
        return rewritten(piece.text, chosen=chosen)
    except ParserSyntaxError as error:
        place = Place(file, error.raw_line + piece.offset, piece.cell)
        raise UsageError(
            "A program is rewritten by LibCST, which has to know its syntax. Received: "
            f"{place}: {error.message}. Nothing was changed. Change the import by hand."
        ) from error


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
