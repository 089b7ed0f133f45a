"""A verification as text and JSON: pure functions of the data."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from replicax._tools.compare import _table

if TYPE_CHECKING:
    from replicax._tools.verify._compare import Difference
    from replicax._tools.verify._result import Comparison, Verification

_HEADERS = (
    "strategy",
    "result",
    "first difference",
    "likely cause",
    "replicas",
    "steps",
    "values\ncompared",
    "how\nmuch",
)
_WORDS = 4  # the first columns hold words


def to_text(verification: Verification) -> str:
    """A table, and a sentence for each strategy that differs."""
    table = _table.aligned(_HEADERS, list(map(_cells, verification.rows)), left=_WORDS)
    title = f"{verification.name}: each step compared with that of one device"
    lines = [*_grown(verification), *sentences(verification)]
    return "\n\n".join([title, table, *map(_table.wrapped, lines)])


def sentences(verification: Verification) -> list[str]:
    """What differs and why, a line for each strategy; or that nothing does."""
    lines = [_sentence(row) for row in verification.rows if not row.is_equal]
    return lines or ["equal: loss, metrics, gradients, weights, statistics and random states."]


def _grown(verification: Verification) -> list[str]:
    names = [row.strategy for row in verification.rows if row.told]
    if not names:
        return []
    told = "so that one device was told that there are as many"
    return [f"{', '.join(names)}: the batch grows with the number of replicas, {told}."]


def to_json(verification: Verification) -> str:
    """Everything that was found."""
    data = {
        "name": verification.name,
        "is_equal": verification.is_equal,
        "rows": [{**asdict(row), "is_equal": row.is_equal} for row in verification.rows],
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _cells(row: Comparison) -> list[str]:
    first = row.differences[0] if row.differences else None
    return [
        row.strategy,
        "equal" if row.is_equal else "DIFFERS",
        _where(first) if first else "",
        row.cause.name if row.cause else "",
        str(row.replicas),
        str(row.steps),
        str(row.compared),
        f"{first.size:.2g}" if first else "",
    ]


def _where(one: Difference) -> str:
    when = f"step {one.step}" if one.step else "start"
    return f"{when}: {one.kind} {one.name}" if one.kind != "steps" else f"{when}: {one.name}"


def _sentence(row: Comparison) -> str:
    assert row.cause is not None
    found = row.differences
    more = f", and {len(found) - 1} more of this step" if len(found) > 1 else ""
    where = f"{_where(found[0])}{more}. " if found else ""
    return f"{row.strategy}: {where}Likely cause: {row.cause.name}. {_capital(row.cause.text)}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
