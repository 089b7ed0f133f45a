"""`python -m replicax._tools.doctor OPTIONS`: `replicax doctor` checks the options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from replicax._core.env import cores
from replicax._tools._command import answer
from replicax._tools.doctor import _render
from replicax._tools.doctor._checks import WRONG, checked
from replicax._tools.doctor._facts import Facts, gather


def main(arguments: list[str]) -> int:
    """Look; return the exit code."""
    return answer("doctor", _doctor, arguments)


def _doctor(options: dict[str, Any]) -> int:
    path = options["script"]
    facts = gather()
    checks = checked(facts)
    print(_render.checks_to_text(checks, only_faults=path is not None), flush=True)
    found = None
    if path is not None:
        # Not at the top: a broken installation must not prevent the check.
        from replicax._tools.compare import _progress
        from replicax._tools.doctor._examination import Script, examine

        script = Script(path, options["args"], options["warm_up"], options["steps"])
        replicas = options["replicas"] or _usual_replicas(facts)
        with _progress.for_stdout() as listener:
            found = examine(script, replicas, listener, workers=options["workers"])
        print(f"\n{_render.examination_to_text(found, cores(), facts.platform)}", flush=True)
    if options["json"]:
        Path(options["json"]).write_text(_render.to_json(checks, found), encoding="utf-8")
    return int(any(check.level == WRONG for check in checks))


def _usual_replicas(facts: Facts) -> tuple[int, ...]:
    """One and two, if there are two devices; a CPU can look like two."""
    return (1, 2) if facts.platform == "cpu" or facts.devices > 1 else (1,)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
