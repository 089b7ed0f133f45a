"""`python -m replicax._tools.profile OPTIONS`, started by `replicax profile`, which checks them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import jax

from replicax._tools._command import answer
from replicax._tools.compare import _progress
from replicax._tools.profile import _render
from replicax._tools.profile._recorder import Plan
from replicax._tools.profile._running import profile_script


def main(arguments: list[str]) -> int:
    """Profile; return the exit code."""
    return answer("profile", _profile, arguments)


def _write_to(file: str) -> None:
    """Redirect everything that this process prints to a file, even output of native code."""
    with open(file, "a") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)


def _profile(options: dict[str, Any]) -> int:
    if options["log"]:
        _write_to(options["log"])
    plan = Plan(options["warm_up"], options["steps"], options["traced"])
    folder = Path(options["output"]) if plan.traced else None
    with _progress.for_stdout() as listener:
        listener.begin(Path(options["script"]).name, steps=plan.total)
        found = profile_script(
            options["script"],
            options["args"],
            plan=plan,
            folder=folder,
            replicas=options["replicas"],
            of_workers=options["of_workers"],
            scale=options["scale"],
            on_step=lambda number: listener.advance(),
        )
        listener.end(f"{1e3 * found.seconds:.3g} ms a step")
    if options["json"]:
        # Each of several workers has its own numbers.
        worker = f".{jax.process_index()}" if options["of_workers"] else ""
        Path(options["json"] + worker).write_text(_render.to_json(found), encoding="utf-8")
    if options["markdown"]:
        Path(options["markdown"]).write_text(_render.to_markdown(found), encoding="utf-8")
    print(f"\n{_render.to_text(found)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
