"""A plan as text and JSON: pure functions of the data. The picture is in `_plots.py`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from replicax._tools.compare import _table
from replicax._tools.plan import _render_scaling
from replicax._tools.plan._chips import size
from replicax._tools.plan._roofline import ASSUMPTIONS

if TYPE_CHECKING:
    from replicax._tools.plan._result import Plan, Row

_MEMORY = (
    "topology",
    "strategy",
    "global\nbatch",
    "para-\nmeters",
    "opti-\nmizer",
    "batch",
    "tempo-\nraries",
    "rest",
    "total",
    "fits",
    "largest\nbatch",
)
_TIME = (
    "topology",
    "strategy",
    "GFLOPs",
    "sent",
    "arithmetic\n(ms)",
    "memory\n(ms)",
    "communi-\ncation (ms)",
    "step\n(ms)",
    "MFU",
    "limited by",
)
_WORDS = 2  # the first columns hold words
_UNKNOWN = "-"


def to_text(plan: Plan) -> str:
    """Two tables, what their columns mean, and what the estimates assume; for a terminal."""
    memory = _table.aligned(_MEMORY, list(map(_memory, plan.rows)), left=_WORDS)
    time = _table.aligned(_TIME, list(map(_time, plan.rows)), left=_WORDS)
    parts = [_title(plan), f"memory of a device\n{memory}", f"a step, on each device\n{time}"]
    wire = [f"{row.topology} {row.strategy}: {_wire(row)}" for row in plan.rows if row.wire]
    if wire:
        parts.append("\n".join(map(_table.wrapped, ["sent by each device in a step", *wire])))
    parts += map(_render_scaling.to_text, plan.scaling)
    parts.append("\n".join(map(_table.wrapped, _caption(plan))))
    return "\n\n".join(parts)


def to_json(plan: Plan) -> str:
    """Everything, and what follows from it."""
    data: dict[str, Any] = {
        "name": plan.name,
        "parameters": plan.parameters,
        "assumptions": list(ASSUMPTIONS),
        "rows": [_row_as_data(row) for row in plan.rows],
        "scaling": list(map(_render_scaling.as_data, plan.scaling)),
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


def _memory(row: Row) -> list[str]:
    memory = row.memory
    total = memory.total if memory else row.needed
    cells = (
        [memory.parameters, memory.optimizer, memory.batch, memory.temporaries, memory.rest]
        if memory
        else [None] * 5
    )
    return [
        row.topology,
        row.strategy,
        str(row.batch),
        *(_UNKNOWN if cell is None else size(cell) for cell in [*cells, total]),
        fits(row),
        largest(row),
    ]


def _time(row: Row) -> list[str]:
    found = row.estimate
    counted = (
        [f"{row.flops / 1e9:.3g}", size(sum(row.wire.values()))] if row.memory else [_UNKNOWN] * 2
    )
    if found is None:
        return [row.topology, row.strategy, *counted, *[_UNKNOWN] * 6]
    communication = found.communication + found.overlapped
    seconds = [found.arithmetic, found.memory, communication, found.seconds]
    return [
        row.topology,
        row.strategy,
        *counted,
        *(f"{1e3 * one:.3g}" for one in seconds),
        f"{found.mfu:.0%}",
        found.limited_by,
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
    return str(found.fits) if found.is_known else f">= {found.fits}"


def _wire(row: Row) -> str:
    return ", ".join(f"{kind} {size(count)}" for kind, count in sorted(row.wire.items()))


def _caption(plan: Plan) -> list[str]:
    capacities = dict.fromkeys(
        f"{row.topology}: {row.chip.name if row.chip else 'a device'} has {size(row.capacity)}"
        for row in plan.rows
        if row.capacity
    )
    estimated = any(row.estimate for row in plan.rows)
    unknown = () if estimated else ("times: nobody says what such a device can do, so none",)
    scaled = _render_scaling.ASSUMPTIONS if plan.scaling else ()
    return [*capacities, *_MEANINGS, *(ASSUMPTIONS if estimated else unknown), *scaled]


_MEANINGS = (
    "temporaries: activations, gradients and all else that the step makes on its way",
    "rest: padding, outputs, code",
    "largest batch: the largest that was tried and fits; a sixteenth more does not, it seems",
)
