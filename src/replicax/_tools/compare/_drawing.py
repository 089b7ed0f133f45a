"""The placement of variables and batches by a strategy, drawn with HTML boxes from measurements."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from replicax._tools.compare._machine import name_range
from replicax._tools.compare._render import counted, kibibytes
from replicax._tools.compare._settings import MULTI_WORKER, PARAMETER_SERVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicax._tools.compare._comparison import Comparison, Measurement, Place

_MOST_SHOWN = 8  # replicas shown; those after the first are alike

_ALL_REDUCE = "all-reduce: the gradients of all replicas become one sum, {size} in each step"
_COMBINING = {
    "mirrored": f"{_ALL_REDUCE}; every copy gets the same update",
    "central_storage": f"{_ALL_REDUCE}; the one copy is updated and sent to the other replicas",
    MULTI_WORKER: f"{_ALL_REDUCE}, between processes; every copy gets the same update",
    PARAMETER_SERVER: "workers fetch variables and send gradients, {size} in each step; servers "
    "apply them as they come, and nobody waits",
}


def draw(comparison: Comparison, measurement: Measurement) -> str:
    """The boxes of one strategy: pieces of a batch, devices, exchange, servers."""
    computing = [place for place in measurement.places if place.computes]
    others = [place for place in measurement.places if not place.computes]
    size = kibibytes(4 * comparison.parameters)
    combining = _COMBINING.get(measurement.strategy, "")
    exchanged = (
        f'<p class="combine">{escape(combining.format(size=size))}</p>'
        if combining and len(measurement.places) > 1
        else '<p class="combine nothing">one replica: nothing to combine</p>'
    )
    servers = f'<ul class="places of-servers">{"".join(map(_server, others))}</ul>'
    return (
        f"<p>{escape(in_words(comparison, measurement))}</p>"
        f'<ul class="places">{_replicas(computing)}</ul>{exchanged}{servers if others else ""}'
    )


def in_words(comparison: Comparison, measurement: Measurement) -> str:
    """The same as a sentence or two."""
    holding = [place for place in measurement.places if place.variables]
    where = name_range(place.name for place in holding)
    copies = "a copy on each of" if len(holding) > 1 else "one copy, on"
    if measurement.strategy == PARAMETER_SERVER and len(holding) > 1:
        copies = "divided among"
    rows = comparison.settings.batch_size
    if all(place.rows is None for place in measurement.places):
        share = f"Whole batches of {rows} rows go to whichever worker is free."
    elif measurement.replicas == 1:
        share = f"One replica takes each batch of {rows} rows."
    else:
        share = f"Each batch of {rows} rows is cut into {measurement.replicas} pieces."
    return f"{share} Variables: {copies} {where}."


def _replicas(places: Sequence[Place]) -> str:
    items = [_replica(number, place) for number, place in enumerate(places)]
    if len(items) > _MOST_SHOWN:
        hidden = len(items) - _MOST_SHOWN
        more = f'<li><div class="device none">and {counted(hidden, "replica")} more</div></li>'
        items[_MOST_SHOWN - 1 : -1] = [more]
    return "".join(items)


def _replica(number: int, place: Place) -> str:
    if place.rows is None:
        piece = '<div class="piece waits">a batch, when free</div>'
    else:
        first, behind = place.rows
        piece = f'<div class="piece">rows {first}–{behind - 1}</div>'
    return (
        f'<li>{piece}<div class="device"><b>{escape(place.name)}</b>'
        f'<span class="part">replica {number}</span>{_variables(place)}</div></li>'
    )


def _server(place: Place) -> str:
    return f'<li><div class="device"><b>{escape(place.name)}</b>{_variables(place)}</div></li>'


def _variables(place: Place) -> str:
    if not place.variables:
        return '<span class="part none">keeps no variables</span>'
    text = f"{counted(place.variables, 'variable')}, {kibibytes(place.variable_bytes)}"
    return f'<span class="part variables">{text}</span>'
