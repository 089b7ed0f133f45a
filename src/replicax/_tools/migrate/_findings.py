"""What is found in one program: its names, what to look at, and the program rewritten."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

from libcst import ParserSyntaxError

from replicax._core.errors import UsageError
from replicax._tools.migrate import _programs
from replicax._tools.migrate._imports import rewritten
from replicax._tools.migrate._names import Names
from replicax._tools.migrate._patterns import checks
from replicax._tools.migrate._verdicts import MISSING, WHOLE, Verdict, verdict

if TYPE_CHECKING:
    from replicax._tools.migrate._programs import Piece, Program


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
    with _programs.refused(program.path):
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
