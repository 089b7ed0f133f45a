"""`python -m replicax._verify OPTIONS`, started by `replicax verify`, which checks the options.

OPTIONS is one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import jax

import replicax as rx
from replicax._script import run_program
from replicax._verify._verifying import verify_program
from replicax.report import _progress

_USAGE = "usage: python -m replicax._verify OPTIONS; see replicax verify --help"


def main(arguments: list[str]) -> int:
    """Verify; return the exit code."""
    if len(arguments) != 1:
        print(_USAGE, file=sys.stderr)
        return 2
    try:
        return _verify(json.loads(arguments[0]))
    except rx.errors.UsageError as error:
        print(f"replicax verify: error: {error}", file=sys.stderr)
    except (Exception, SystemExit):  # of the script, on one device
        traceback.print_exc()
    return 2


def _verify(options: dict[str, Any]) -> int:
    script, given = options["target"], options["args"]

    def program() -> None:
        try:
            run_program(script, given, forget=True)
        finally:  # it is ended somewhere: what it measures there would go on
            with contextlib.suppress(RuntimeError):
                jax.profiler.stop_trace()

    if options["json"]:
        Path(options["json"]).touch()  # before minutes of work, not after
    with _progress.for_stdout() as listener:
        found = verify_program(
            program,
            script,
            strategies=options["strategies"],
            replicas=options["replicas"],
            steps=options["steps"],
            seed=options["seed"],
            repeat=options["repeat"],
            listener=listener,
        )
    print(f"\n{found.table()}", flush=True)
    if options["json"]:
        Path(options["json"]).write_text(found.to_json(), encoding="utf-8")
    return 0 if found.is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
