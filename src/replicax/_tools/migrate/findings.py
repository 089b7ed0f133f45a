"""The findings in files, and the verdict on each program that they form."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from libcst import ParserSyntaxError

from replicax._core.errors import UsageError
from replicax._tools.migrate.calls import LOOK, Remark, judge
from replicax._tools.migrate.imports import rewritten
from replicax._tools.migrate.names import MISSING, checks, of_numpy_1, verdict
from replicax._tools.migrate.programs import Piece, Program, refused

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._tools.migrate.values import Home

RUNS, CHANGES, STOPS = "runs as it is", "needs these changes", "stops here"
_MAIN = re.compile(r"""^if\s+__name__\s*==\s*["']__main__["']""", re.MULTILINE)
_SCRIPT = re.compile(r"(?:^|_)(?:main|train|run|evaluate|eval|predict|finetune|benchmark)(?:_|$)")


@dataclass(frozen=True, order=True)
class Place:
    """A place: a file, a cell from 1 (0 in a script), and the line in it."""

    file: str
    cell: int
    line: int

    def __str__(self) -> str:
        return f"{self.file}[{self.cell}]:{self.line}" if self.cell else f"{self.file}:{self.line}"


@dataclass(frozen=True, order=True)
class Missing:
    """A missing thing, its place, and what to use instead.

    `ends`: nothing replaces it.
    """

    place: Place
    what: str
    instead: str
    ends: bool


@dataclass(eq=False)
class Findings:
    """The findings in a file; `trees` are its modules: one more for each `%%writefile`."""

    source: Program
    uses: dict[str, list[Place]] = field(default_factory=dict)
    remarks: list[tuple[Place, Remark]] = field(default_factory=list)
    checked: int = 0  # the number of calls
    unchecked: list[Place] = field(default_factory=list)  # calls of unknown functions
    before: list[str] = field(default_factory=list)  # the sources of the pieces
    after: list[str] = field(default_factory=list)  # the same, rewritten
    trees: list[list[tuple[Home, ast.Module]]] = field(default_factory=list)
    imports: list[Findings] = field(default_factory=list)

    @property
    def file(self) -> str:
        return str(self.source.path)

    @property
    def changed(self) -> bool:
        """Whether something is rewritten."""
        return self.before != self.after

    def missing(self) -> Iterator[Missing]:
        """The names and calls that Replicax lacks."""
        for name, places in self.uses.items():
            what = verdict(name)
            if what.kind == MISSING:
                yield from (Missing(place, f"`{name}`", what.what, what.ends) for place in places)
        for place, remark in self.remarks:
            if remark.kind == MISSING:
                yield Missing(place, remark.text, "", remark.ends)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a program: the file that it starts with, and those that it imports."""

    entry: Findings
    files: tuple[Findings, ...]

    @property
    def checked(self) -> int:
        """The number of its calls that were checked."""
        return sum(one.checked for one in self.files)

    @property
    def calls(self) -> int:
        """The number of its calls of TensorFlow, of Keras or of unknown functions."""
        return self.checked + sum(len(one.unchecked) for one in self.files)

    @property
    def missing(self) -> list[Missing]:
        """The names and calls that Replicax lacks, in order."""
        return sorted({found for one in self.files for found in one.missing()})

    @property
    def verdict(self) -> str:
        """`RUNS`, `CHANGES` or `STOPS`."""
        missing = self.missing
        if any(one.ends for one in missing):
            return STOPS
        return CHANGES if missing else RUNS


def look(program: Program) -> Findings:
    findings, shared = Findings(program), []
    with refused(program.path):
        for number, piece in enumerate(program.pieces):
            tree = _parsed(piece, findings)
            if tree is None:
                continue
            # The third number tells pieces without cells apart, too.
            home = (findings.file, number, piece.offset)
            if piece.alone:
                findings.trees.append([(home, tree)])
            else:
                shared.append((home, tree))
            new = _rewritten(piece, findings.file)
            findings.before.append(piece.original)
            findings.after.append(piece.source(new))
    findings.trees.insert(0, shared)
    return findings


def judged(found: Sequence[tuple[Findings, Path]]) -> None:
    """Add what files use and lack; files of a folder import each other.

    Each comes with the folder that was named.
    """
    sources, owners = {}, {}
    for one, root in found:
        name = ".".join(one.source.path.relative_to(root).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        for number, trees in enumerate(one.trees):
            key = name if not number and name not in sources else f"{one.file}#{number}"
            sources[key], owners[key] = trees, one
    for key, judgement in judge(sources).items():
        one = owners[key]
        for home, line, name in judgement.uses:
            one.uses.setdefault(name, []).append(_place(one, home, line))
        one.remarks += [(_place(one, home, line), what) for home, line, what in judgement.remarks]
        one.checked += judgement.checked
        one.unchecked += [_place(one, home, line) for home, line in judgement.unchecked]
        one.imports += [owners[name] for name in sorted(judgement.imports)]
    for one, _ in found:
        for trees in one.trees:
            for home, tree in trees:
                one.remarks += [
                    (_place(one, home, line), Remark(LOOK, text))
                    for line, text in (checks(tree) if one.uses else ())
                ]
                one.remarks += [
                    (_place(one, home, line), Remark(LOOK if is_rewritten else MISSING, text))
                    for line, text, is_rewritten in of_numpy_1(tree)
                ]
        one.uses = {name: sorted(set(places)) for name, places in one.uses.items()}
        one.remarks = sorted(set(one.remarks), key=lambda found: (found[0], found[1].text))


def _place(one: Findings, home: Home, line: int) -> Place:
    piece = one.source.pieces[home[1] or 0]
    return Place(one.file, piece.cell or 0, line + home[2])


def programs(found: Sequence[Findings], named: set[str]) -> list[Judgement]:
    """The programs that files form; a file that was named itself is a program."""
    tests = [one for one in found if one.source.path.stem.startswith(("test_", "conftest"))]
    imported = {id(other) for one in found if one not in tests for other in one.imports}
    result = []
    for one in found:
        path = one.source.path
        text = one.before[0] if one.before else ""
        is_script = path.suffix == ".ipynb" or bool(_MAIN.search(text)) or text.startswith("#!")
        if id(one) not in imported and one not in tests:
            is_script |= bool(_SCRIPT.search(path.stem)) or _acts(one)
        if one.file in named or is_script:
            files: list[Findings] = []
            waiting = [one]
            while waiting:
                file = waiting.pop()
                if file not in files:
                    files.append(file)
                    waiting += file.imports
            if any(file.uses for file in files):
                result.append(Judgement(one, tuple(files)))
    return result


def _acts(one: Findings) -> bool:
    """Whether a module does something when it is started."""
    statements = [node for trees in one.trees[:1] for _, tree in trees for node in tree.body]
    return any(
        isinstance(node, ast.With | ast.For | ast.While)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
        for node in statements
    )


def _parsed(piece: Piece, findings: Findings) -> ast.Module | None:
    try:
        return ast.parse(piece.text)
    except SyntaxError as error:
        place = Place(findings.file, piece.cell or 0, (error.lineno or 1) + piece.offset)
        if piece.cell is not None:  # other cells can still be read
            text = "This cell is no Python 3; it is left as it is."
            findings.remarks.append((place, Remark(LOOK, text)))
            findings.before.append(piece.original)
            findings.after.append(piece.original)
            return None
        raise UsageError(
            f"{place}: {error.msg}. Only Python 3 can be migrated: correct the line, or run 2to3 "
            "first."
        ) from error


def _rewritten(piece: Piece, file: str) -> str:
    try:
        return rewritten(piece.text)
    except ParserSyntaxError as error:
        place = Place(file, piece.cell or 0, error.raw_line + piece.offset)
        raise UsageError(
            f"{place}: LibCST cannot parse this: {error.message}. Nothing was changed; change the "
            "import by hand."
        ) from error
