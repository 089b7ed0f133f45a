"""`python -m replicax._verify OPTIONS`, started by `replicax verify`, which checks the options.

OPTIONS is one JSON object.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import replicax as rx
from replicax._script import run_program
from replicax._verify._verifying import verify_program
from replicax.report import _progress

_USAGE = "usage: python -m replicax._verify OPTIONS; see replicax verify --help"


def main(arguments: list[str]) -> int:
    """Verify; return the exit code."""
    if len(arguments) != 1:
        return 2
    try:
        return _verify(json.loads(arguments[0]))
    except rx.errors.UsageError:
        pass
    except Exception:  # of the script, on one device
        traceback.print_exc()
    return 2


def _verify(options: dict[str, Any]) -> int:
    script, given = options["target"], options["args"]
    if options["json"]:
        Path(options["json"]).touch()  # before minutes of work, not after
    with _progress.for_stdout() as listener:
        found = verify_program(
            lambda: run_program(script, given, forget=True),
            script,
            strategies=options["strategies"],
            replicas=options["replicas"],
            steps=options["steps"],
            seed=options["seed"],
            repeat=options["repeat"],
            listener=listener,
        )
    if options["json"]:
        Path(options["json"]).write_text(found.to_json(), encoding="utf-8")
    return 0 if found.is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
