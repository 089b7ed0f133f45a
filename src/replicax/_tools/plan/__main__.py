"""`python -m replicax._tools.plan OPTIONS`: `replicax plan` checks the options and starts it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import keras

import replicax as rx
from replicax._tools._command import answer
from replicax._tools.compare import _progress
from replicax._tools.plan._load import load
from replicax._tools.plan._planning import plan_subject
from replicax._tools.plan._result import drawing
from replicax._tools.plan._targets import target


def main(arguments: list[str]) -> int:
    """Plan; return the exit code."""
    return answer("plan", _plan, arguments)


def _plan(options: dict[str, Any]) -> int:
    for name in ("json", "plot"):
        _check_writable(options[name])  # before minutes of work, not after
    if options["plot"]:
        drawing()
    for name in options["topologies"]:
        if not name.startswith(("cpu:", "gpu:")):  # these start JAX, which the script may configure
            target(name)  # errors of any target are found first
    # On Ctrl-C, for example, the compiler for TPUs would print where it was.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if options["precision"]:
        keras.config.set_dtype_policy(options["precision"])
    planned = load(options["target"], options["args"])
    with _progress.for_stdout() as listener:
        found = plan_subject(
            planned,
            topologies=options["topologies"],
            strategies=options["strategies"],
            batch_size=options["batch"],
            find_largest=options["bisect"],
            scale=options["scale"],
            listener=listener,
        )
    print(f"\n{found.table()}", flush=True)
    if options["json"]:
        Path(options["json"]).write_text(found.to_json(), encoding="utf-8")
    if options["plot"]:
        found.plot(options["plot"])
    return 0


def _check_writable(file: str | None) -> None:
    if file and not Path(file).resolve().parent.is_dir():
        raise rx.errors.UsageError(
            f"Cannot write {file!r}: its folder does not exist. Make the folder, or write "
            "elsewhere."
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
