"""A plan as text and JSON: pure functions of the data. The picture is in `_plots.py`."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from replicax._plan._chips import size
from replicax._plan._roofline import ASSUMPTIONS
from replicax.report import _table

if TYPE_CHECKING:
    from replicax._plan._result import Plan, Row

_HEADERS = (
    "topology",
    "strategy",
    "global\nbatch",
    "para-\nmeters",
    "opti-\nmizer",
    "batch",
    "tempo-\nraries",
    "rest",
    "total /\ndevice",
    "fits",
    "largest\nbatch",
    "GFLOPs /\ndevice",
    "sent /\ndevice",
    "step\n(ms)",
    "MFU",
    "limited by",
)
_WORDS = 2  # the first columns hold words
_UNKNOWN = "-"


def to_text(plan: Plan) -> str:
    """The table with what its columns mean and what its estimates assume, for a terminal."""
    parts = [_title(plan), _table.aligned(_HEADERS, _rows(plan), left=_WORDS)]
    wire = [f"{row.topology} {row.strategy}: {_wire(row)}" for row in plan.rows if row.wire]
    if wire:
        parts.append("\n".join(map(_wrapped, ["sent by a device in a step", *wire])))
    parts.append("\n".join(map(_wrapped, _caption(plan))))
    return "\n\n".join(parts)


def to_json(plan: Plan) -> str:
    """Everything, and what follows from it."""
    data: dict[str, Any] = {
        "name": plan.name,
        "parameters": plan.parameters,
        "assumptions": list(ASSUMPTIONS),
        "rows": [_row_as_data(row) for row in plan.rows],
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _row_as_data(row: Row) -> dict[str, Any]:
    data = asdict(row)
    if row.memory is not None:
        data["memory"]["total"] = row.memory.total
    if row.estimate is not None:
        data["estimate"] |= {
            "seconds": row.estimate.seconds,
            "limited_by": row.estimate.limited_by,
        }
    return data


def _title(plan: Plan) -> str:
    return f"Planned, not measured: a training step of {plan.name} ({plan.parameters:,} parameters)"


def _rows(plan: Plan) -> list[list[str]]:
    return [_row(row) for row in plan.rows]


def _row(row: Row) -> list[str]:
    memory = row.memory
    parts = (
        [memory.parameters, memory.optimizer, memory.batch, memory.temporaries, memory.rest]
        if memory
        else []
    )
    total = memory.total if memory else row.needed
    found = row.estimate
    return [
        row.topology,
        row.strategy,
        str(row.batch),
        *(map(size, parts) if parts else [_UNKNOWN] * 5),
        size(total) if total is not None else _UNKNOWN,
        fits(row),
        largest(row),
        f"{row.flops / 1e9:.3g}" if memory else _UNKNOWN,
        size(sum(row.wire.values())) if memory else _UNKNOWN,
        f"{found.seconds * 1e3:.3g}" if found else _UNKNOWN,
        f"{found.mfu:.0%}" if found else _UNKNOWN,
        found.limited_by if found else _UNKNOWN,
    ]


def fits(row: Row) -> str:
    """Whether a step fits, in a word or two."""
    if row.fits is None:
        return _UNKNOWN
    return "yes" if row.fits else f"NO ({size(row.capacity or 0)})"


def largest(row: Row) -> str:
    """The largest batch that fits, as far as it is known."""
    found = row.largest
    if found is None:
        return _UNKNOWN
    if not found.fits:
        return f"< {found.too_large}"
    return str(found.fits) if found.too_large else f">= {found.fits}"


def _wire(row: Row) -> str:
    return ", ".join(f"{kind} {size(count)}" for kind, count in sorted(row.wire.items()))


def _caption(plan: Plan) -> list[str]:
    capacities = dict.fromkeys(
        f"{row.topology}: a device has {size(row.capacity)}" for row in plan.rows if row.capacity
    )
    return [*capacities, *_MEANINGS, *ASSUMPTIONS]


_MEANINGS = (
    "temporaries: activations, gradients and all else that the step makes on its way; rest: "
    "padding, outputs, code",
    "largest batch: the largest that was tried and fits; it is known up to a sixteenth",
)


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 100, subsequent_indent="  ")
