"""`python -m replicax._tools.compare COMMAND OPTIONS`: `replicax` checks the options and starts it.

OPTIONS is one JSON object.
"""

from __future__ import annotations

import json
import sys
import webbrowser
from typing import TYPE_CHECKING, Any

import replicax as rx
from replicax import report
from replicax._tools.compare import _devices as device_report
from replicax._tools.compare import _progress, _render, _save

if TYPE_CHECKING:
    from pathlib import Path

_USAGE = "usage: python -m replicax._tools.compare {compare,devices} OPTIONS; see replicax --help"


def main(arguments: list[str]) -> int:
    """Run a command; return its exit code."""
    commands = {"compare": _compare, "devices": _devices}
    if len(arguments) != 2 or arguments[0] not in commands:
        print(_USAGE, file=sys.stderr)
        return 2
    command, options = arguments
    try:
        return commands[command](json.loads(options))
    except rx.errors.ReplicaxError as error:
        print(f"replicax {command}: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, rx.errors.UsageError) else 1


def _compare(options: dict[str, Any]) -> int:
    # Missing packages are found before minutes of work, not after.
    folder = _save.make_folder(options.pop("output"))
    _save.drawing()
    show = options.pop("open", False)
    settings = report.Settings(**options)
    with _progress.for_stdout() as listener:
        comparison = report.compare(settings, listener=listener)
    files = _save.save(comparison, folder)
    names = ", ".join(file.name for file in files)
    print(f"\n{_render.to_text(comparison)}\n\nWritten to {folder}: {names}", flush=True)
    if show:
        _show(folder / _save.PAGE)
    verdict = _render.verdict(comparison)
    if comparison.deviating:
        print(f"replicax compare: error: {verdict}", file=sys.stderr)
        return 1
    print(verdict)
    return 0


def _show(page: Path) -> None:
    """Open a page in the browser, or say where it is."""
    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        print(f"replicax compare: found no browser to open {page} in", file=sys.stderr)


def _devices(options: dict[str, Any]) -> int:
    found = report.devices(options["replicas"])
    as_wanted = device_report.devices_to_json if options["json"] else device_report.devices_to_text
    print(as_wanted(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
