"""The output of `replicax migrate`: programs, names, points to look at, the difference."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.table import Table

from replicax._tools.migrate.findings import RUNS, STOPS, Findings, Judgement, Missing, Place
from replicax._tools.migrate.names import CHANGED, MISSING, SAME, verdict

if TYPE_CHECKING:
    from rich.console import Console

    from replicax._tools.migrate.trial import Outcome

_TITLES = {
    CHANGED: "supported, with another meaning",
    SAME: "supported, with the same meaning",
}
_PLACES, _NAMES = 3, 6  # places, and names with one advice, that are shown; the JSON has all


def print_programs(
    console: Console,
    findings: Sequence[Findings],
    judgements: Sequence[Judgement],
    ran: Mapping[str, Outcome],
) -> None:
    """The verdict on each program, with what it lacks and what its run showed."""
    folder = _folder(findings)
    if folder:
        console.print(f"in {folder}")
    if judgements:
        console.print(f"programs ({len(judgements)})", style="bold")
    for one in judgements:
        verdict = one.verdict
        if verdict == STOPS:
            verdict = (
                f"stops at {_short(next(lack.place for lack in one.missing if lack.ends), folder)}"
            )
        lines = _missing(one.missing, folder)
        if one.entry.file in ran:
            lines.append(f"run: {ran[one.entry.file].text}")
        _print_file(console, f"{_short(one.entry.file, folder)}: {verdict}; {_calls(one)}", lines)
    files = {id(file) for one in judgements for file in one.files}
    for file in findings:
        missing = sorted(file.missing())
        if missing and id(file) not in files:
            what = f"{_short(file.file, folder)}: not part of a program"
            _print_file(console, what, _missing(missing, folder))


def _print_file(console: Console, title: str, lines: Sequence[str]) -> None:
    console.print(f" {title}")
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 4)))


def _missing(found: Sequence[Missing], folder: str) -> list[str]:
    """A line for each thing that is missing, with its places; one for names with one advice."""
    groups: dict[str, list[Missing]] = {}
    for one in found:
        groups.setdefault(one.instead or one.what, []).append(one)
    lines = []
    for group in groups.values():
        names = list(dict.fromkeys(one.what for one in group))
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        what = ", ".join(names[:_NAMES]) + more
        places = _shortened([one.place for one in group], folder)
        lines.append(f"{places}  {what}" + (f": {group[0].instead}" if group[0].instead else ""))
    return lines


def _calls(one: Judgement) -> str:
    unknown = one.calls - one.checked
    text = f"{one.checked} of {one.calls} calls checked ({_share(one.checked, one.calls)})"
    return f"{text}, {unknown} not" if unknown else text


def print_names(console: Console, findings: Sequence[Findings]) -> None:
    """A table for each kind of name, and one of what to look at."""
    uses, folder = _uses(findings), _folder(findings)
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
    for place, remark in (pair for one in findings for pair in one.remarks):
        if remark.kind != MISSING:  # a program lists the missing names
            found.setdefault(remark.text, []).append(place)
    if found:
        table = _table(f"to check by hand ({len(found)})")
        for text, (first, *others) in found.items():
            also = f"\nalso {_shortened(others, folder)}" if others else ""
            table.add_row(_short(first, folder), text + also)
        console.print(table)


def _folder(findings: Sequence[Findings]) -> str:
    """Where all files are, with a slash."""
    files = [one.file for one in findings]
    above = os.path.commonpath(files) if len(files) > 1 else "".join(map(os.path.dirname, files))
    return os.path.join(above, "") if above else ""


def _short(place: Place | str, folder: str) -> str:
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
    """The first places; several of one file name it once: "train.py:3, 7 +2"."""
    shown: list[str] = []
    places = list(dict.fromkeys(places))
    for index, place in enumerate(places[:_PLACES]):
        before = places[index - 1] if index else None
        same = before is not None and (before.file, before.cell) == (place.file, place.cell)
        shown.append(str(place.line) if same else _short(place, folder))
    more = len(places) - _PLACES
    return ", ".join(shown) + (f" +{more}" if more > 0 else "")


def summary(
    findings: Sequence[Findings], judgements: Sequence[Judgement], unread: Sequence[str]
) -> str:
    """The share of names, calls and programs that are supported."""
    names = list(_uses(findings))
    if not names:
        return "No name of TensorFlow or Keras is used."
    kinds = Counter(verdict(name).kind for name in names)
    here = len(names) - kinds[MISSING]
    checked = sum(one.checked for one in findings)
    calls = checked + sum(len(one.unchecked) for one in findings)
    run = [one for one in judgements if one.verdict == RUNS]
    unsure = sum(one.checked < one.calls for one in run)
    parts = [
        (
            f"{here} of {len(names)} names supported ({_share(here, len(names))}): "
            f"{kinds[SAME]} with the same meaning, {kinds[CHANGED]} with another."
        ),
        f"{checked} of {calls} calls checked ({_share(checked, calls)})"
        + ("; the others call functions that could not be read." if checked < calls else "."),
        f"{len(run)} of {len(judgements)} programs fully supported"
        + (f"; {unsure} of them with calls that were not checked." if unsure else "."),
    ]
    if unread:
        parts.append(f"{len(unread)} could not be read.")
    return "\n".join(parts)


def _share(part: int, whole: int) -> str:
    return f"{100 * part // whole if whole else 100} %"


def as_data(
    findings: Sequence[Findings],
    judgements: Sequence[Judgement],
    unread: Sequence[str],
    ran: Mapping[str, Outcome],
) -> dict[str, Any]:
    uses = _uses(findings)
    kinds = Counter(verdict(name).kind for name in uses)
    return {
        "programs": [
            {
                "program": one.entry.file,
                "files": [file.file for file in one.files],
                "verdict": one.verdict,
                "missing": [
                    {**_place(lack.place), "what": lack.what, "instead": lack.instead}
                    for lack in one.missing
                ],
                "checked": one.checked,
                "calls": one.calls,
                "run": asdict(ran[one.entry.file]) if one.entry.file in ran else None,
            }
            for one in judgements
        ],
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
            {**_place(place), "kind": remark.kind, "text": remark.text}
            for one in findings
            for place, remark in one.remarks
        ],
        "unchecked": [_place(place) for one in findings for place in one.unchecked],
        "files": [{"file": one.file, "rewritten": one.changed} for one in findings],
        "unread": list(unread),
        "counts": {kind: kinds[kind] for kind in (SAME, CHANGED, MISSING)},
    }


def _place(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "cell": place.cell or None}


def differences(findings: Findings) -> Iterator[str]:
    """The rewritten lines as a diff; for a notebook, one diff per cell."""
    pieces = zip(findings.source.pieces, findings.before, findings.after, strict=True)
    for piece, before, after in pieces:
        if before == after:
            continue
        name = findings.file if piece.cell is None else f"{findings.file}[{piece.cell}]"
        lines = difflib.unified_diff(
            before.splitlines(), after.splitlines(), name, f"{name} (rewritten)", n=1, lineterm=""
        )
        yield from lines
