"""The output of the tools: tables for a terminal, Markdown and HTML, numbers in words, JSON."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Collection, Sequence
from html import escape
from pathlib import Path
from typing import Any

from replicax._core.errors import UsageError, did_you_mean


def aligned(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """A table for a terminal, with a rule below the headers.

    A line break divides a header over several lines. The first `left` columns hold words and are
    aligned left; the others hold numbers and are aligned right.
    """
    divided = [header.split("\n") for header in headers]
    height = max(map(len, divided))
    # Headers stand on the rule, so empty lines go above the short ones.
    lifted = [[""] * (height - len(lines)) + lines for lines in divided]
    above = list(zip(*lifted, strict=True))
    columns = zip(*above, *rows, strict=True)
    widths = [max(map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if position < left else cell.rjust(width)
            for position, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    return "\n".join([*map(line, above), rule, *map(line, rows)])


def markdown_table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """The same table in Markdown."""
    marks = [":--" if position < left else "--:" for position in range(len(headers))]
    lines = [[header.replace("\n", " ") for header in headers], marks, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def html_table(
    headers: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str, left: int = 1
) -> str:
    """The same table in HTML, every text escaped; the first cell of a row is its header."""

    def cell(tag: str, text: str, position: int, scope: str = "") -> str:
        side = "" if position < left else ' class="number"'
        return f"<{tag}{scope}{side}>{escape(text)}</{tag}>"

    head = "".join(cell("th", text, i, ' scope="col"') for i, text in enumerate(headers))
    lines = [
        [
            cell("th", first, 0, ' scope="row"'),
            *(cell("td", text, i) for i, text in enumerate(rest, start=1)),
        ]
        for first, *rest in rows
    ]
    body = "\n".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    top = f"<thead><tr>{head}</tr></thead>" if any(headers) else ""
    name = f"<caption>{escape(caption)}</caption>"
    return f'<div class="scroll"><table>{name}{top}<tbody>{body}</tbody></table></div>'


def wrapped(line: str) -> str:
    return textwrap.fill(line, 100, subsequent_indent="  ")


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def milliseconds(seconds: float) -> str:
    """A time in words."""
    return f"{1e3 * seconds:.3g} ms"


def as_json(data: Any) -> str:
    """Data as JSON, in which NaN and infinities are strings, and frozen sets are sorted lists."""
    return json.dumps(_standard(data), indent=2, allow_nan=False) + "\n"


def _standard(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _standard(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_standard(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    meant = did_you_mean(name, known)
    return UsageError(f"No {what} {name!r} here.{meant} Use any of {', '.join(known)}.")


def make_folder(folder: str | Path) -> Path:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"Cannot make the folder {str(folder)!r}: {error.strerror}. Pass another one with "
            "--output."
        ) from error
    return Path(folder)
