"""`python -m replicax._tools.verify OPTIONS`: `replicax verify` checks the options."""

from __future__ import annotations

import contextlib
import sys
import traceback
from pathlib import Path
from typing import Any

import jax

from replicax._core.errors import UsageError
from replicax._tools._command import answer
from replicax._tools.compare import _progress
from replicax._tools.script import run_program
from replicax._tools.verify._verifying import verify_program


def main(arguments: list[str]) -> int:
    """Verify; return the exit code."""
    return answer("verify", _verify, arguments)


def _verify(options: dict[str, Any]) -> int:
    script, given = options["target"], options["args"]

    def program() -> None:
        try:
            run_program(script, given, forget=True)
        finally:  # the script may end anywhere, and its measuring would go on
            with contextlib.suppress(RuntimeError):
                jax.profiler.stop_trace()

    try:
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
    except UsageError:
        raise
    except (Exception, SystemExit):  # of the script, on one device
        traceback.print_exc()
        return 2
    print(f"\n{found.table()}", flush=True)
    if options["json"]:
        Path(options["json"]).write_text(found.to_json(), encoding="utf-8")
    return 0 if found.is_equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
