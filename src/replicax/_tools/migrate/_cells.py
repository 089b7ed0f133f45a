"""A notebook's cell: its Python, with what IPython adds hidden and shown again."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import final

# Cell magics whose body is Python: some run it here, some write it to a file.
_RUNS = {"capture", "prun", "time", "timeit", "skip"}
_WRITES = {"file", "writefile"}
_MARK = "replicax-hidden-line"
_LINE = re.compile(
    # Indentation; perhaps `name =`; then a magic, or a question mark before or behind a name.
    r"(?P<indent>[ \t]*)(?P<target>[\w.\[\]'\", ]+=[ \t]*)?"
    r"(?P<magic>(?:!(?!=)|%+\w|\?).*|[\w.]+\?{1,2}[ \t]*)"
)
_HIDDEN = re.compile(rf"[ \t]*(?:.*= )?(?:pass|None)  # {_MARK} (\d+)")
_BACKEND = re.compile(r"(%(?:set_)?env\s+KERAS_BACKEND[= ]\s*)tensorflow\b")


@final
@dataclass(frozen=True)
class Cover:
    """A cell with its magics hidden.

    Args:
        python: What is left, as Python.
        lines: The lines that are hidden.
        head: The cell magic, and what is above it.
        alone: Whether the body is written to a file.
    """

    python: str
    lines: tuple[str, ...]
    head: str = ""
    alone: bool = False

    @property
    def offset(self) -> int:
        """How many lines of the cell are above its Python."""
        return self.head.count("\n")


def hidden(source: str) -> Cover | None:
    """Take a cell's magics away; None if it is not Python."""
    magic = re.match(r"\s*%%(\w+)([^\n]*)(\n|\Z)", source)
    if magic is None:
        return Cover(*_without_lines(source))
    head, body = source[: magic.end()], source[magic.end() :]
    if magic[1] in _WRITES and magic[2].strip().split(" ")[-1].endswith(".py"):
        return Cover(body, (), head, alone=True)
    if magic[1] in _RUNS:
        return Cover(*_without_lines(body), head)
    return None


def _without_lines(source: str) -> tuple[str, tuple[str, ...]]:
    """Put a statement in the place of every line that only IPython understands."""
    if _is_python(source):  # a line in it may begin with `%`, and go on from the one above
        return source, ()
    lines, kept, result = source.splitlines(keepends=True), [], []
    while lines:
        line = lines.pop(0)
        content = line.rstrip("\r\n")
        match = _LINE.fullmatch(content)
        if match is None:
            result.append(line)
            continue
        while content.endswith("\\") and lines:  # the shell's command goes on
            content += line[len(line.rstrip("\r\n")) :] + lines[0].rstrip("\r\n")
            line = lines.pop(0)
        # As many lines as there were, so that the numbers of the others stay.
        extra = [""] * content.count("\n")
        statement = f"{match['target']}None" if match["target"] else "pass"
        statement = f"{match['indent']}{statement}  # {_MARK} {len(kept)}"
        kept.append(content)
        result.append("\n".join([statement, *extra]) + line[len(line.rstrip("\r\n")) :])
    return "".join(result), tuple(kept)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: its depth
        return False
    return True


def shown(cover: Cover, python: str) -> str:
    """The cell again, from its Python, and with Keras' backend changed in its magics."""
    result, skip = [], 0
    for line in python.splitlines(keepends=True):
        match = _HIDDEN.match(line)
        if match:
            content = cover.lines[int(match[1])]
            skip = content.count("\n")
            end = line[len(line.rstrip("\r\n")) :]
            result.append(_BACKEND.sub(r"\g<1>jax", content) + ("" if skip else end))
        elif skip:
            skip -= 1
            result.append("" if skip else line)
        else:
            result.append(line)
    return cover.head + "".join(result)
