"""A profile as text, Markdown and JSON: pure functions of the data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from replicax._core.machine.memory import size
from replicax._tools.profile.result import COLLECTIVES, LAUNCH, PARTS, Profile
from replicax._tools.text import aligned, as_json, markdown_table, milliseconds, wrapped

_Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]

_SPLIT = ("part of a step", "ms", "share")
_WIRE = ("collective", "in a step", "bytes of results")
_MEMORY = ("memory of a device", "bytes")
_DEVICES = ("device", "computes\n(ms)", "in collectives\n(ms)", "busy", "peak\nmemory")


def to_text(profile: Profile) -> str:
    """One page for a terminal."""
    return _page(profile, aligned, wrapped)


def to_markdown(profile: Profile) -> str:
    """The same page in Markdown."""
    return _page(profile, markdown_table, lambda line: f"{line}\n") + "\n"


def to_json(profile: Profile) -> str:
    return as_json(as_data(profile))


def as_data(profile: Profile) -> dict[str, Any]:
    slowest = profile.slowest
    return {**asdict(profile), "slowest": asdict(slowest) if slowest else None}


def _page(profile: Profile, table: _Table, wrapped: Callable[[str], str]) -> str:
    parts = [wrapped(title(profile)), table(_SPLIT, _split(profile))]
    program = profile.program
    if program is not None and program.collectives:
        rows = [[one.kind, str(one.count), size(one.bytes)] for one in program.collectives]
        parts.append(table(_WIRE, rows))
    parts.append(table(_MEMORY, _memory(profile)))
    if profile.devices:
        parts.append(table(_DEVICES, _devices(profile)))
    parts.append("\n".join(map(wrapped, notes(profile))))
    return "\n\n".join(parts)


def title(profile: Profile) -> str:
    rows = "" if profile.rows is None else f", {profile.rows} rows"
    rate = "" if profile.rows is None else f", {profile.rows / profile.seconds:,.0f} rows / s"
    return (
        f"{profile.name}: {milliseconds(profile.seconds)} for each {profile.kind} of "
        f"{profile.replicas} replica(s){rows}{rate}; {profile.steps} steps measured"
    )


def _split(profile: Profile) -> list[list[str]]:
    parts = [
        [name, f"{1e3 * profile.parts[part]:.3f}", f"{profile.share(part):.0%}"]
        for part, name in PARTS.items()
        if profile.is_traced or part not in (COLLECTIVES, LAUNCH)
    ]
    return [*parts, ["together", f"{1e3 * sum(profile.parts.values()):.3f}", "100%"]]


def _memory(profile: Profile) -> list[list[str]]:
    program = profile.program
    of_program = (
        [
            ["arguments: variables, batch", size(program.arguments)],
            ["temporaries", size(program.temporaries)],
            ["results with memory of their own", size(program.results)],
        ]
        if program is not None
        else []
    )
    return [*of_program, ["this process, at most", size(profile.host_peak_bytes)]]


def _devices(profile: Profile) -> list[list[str]]:
    return [
        [
            one.name,
            f"{1e3 * one.own:.3f}",
            f"{1e3 * one.waiting:.3f}",
            f"{one.busy:.0%}",
            "-" if one.peak_bytes is None else size(one.peak_bytes),
        ]
        for one in profile.devices
    ]


def notes(profile: Profile) -> list[str]:
    """The notes below the tables: how the times were measured, and what is not in them."""
    found = [
        (
            f"compiled: {profile.warm_up_compiling:.2f} s before the measured steps, "
            f"{profile.compiled} programs in {profile.compiled_in} of them"
        ),
        (
            "measured: each copy and each step is waited for, so a step takes longer than one that "
            "overlaps with the next"
        ),
    ]
    if profile.is_traced:
        found.append(
            "estimated: compute, all-reduce and launch are the measured time of the program, "
            "divided as the profiler saw the slowest device in other, traced steps"
        )
    else:
        found.append(
            "not traced (`--no-trace`, or the script ended before the traced steps): compute is "
            "all the time of a program, with its all-reduce and launch"
        )
    if profile.trace is not None:
        found.append(f"trace: tensorboard --logdir {profile.trace}")
    slowest = profile.slowest
    if slowest is not None:
        found.append(
            f"slowest: {slowest.name} computes {slowest.factor:.2f} times as long as the median "
            "of the others"
        )
    return found
