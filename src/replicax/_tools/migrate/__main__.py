"""`python -m replicax._tools.migrate OPTIONS`, started by `replicax migrate`, which checks them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from replicax._core.errors import UsageError
from replicax._tools._command import answer


def main(arguments: list[str]) -> int:
    """Migrate; return the exit code."""
    return answer("migrate", _migrate, arguments)


def _migrate(options: dict[str, Any]) -> int:
    try:
        import libcst as libcst
    except ImportError:
        raise UsageError(
            "`replicax migrate` needs the package libcst, which is not installed. Run `pip "
            "install 'replicax[migrate]'`."
        ) from None
    from rich.console import Console

    from replicax._tools.migrate import findings, programs, report, trial

    found, unread, named = [], [], set()
    for path, root in programs.find(options["paths"]):
        try:
            found.append((findings.look(programs.load(path)), root or path.parent))
        except UsageError as error:
            if root is None:
                raise
            unread.append(str(path))
            print(f"replicax migrate: not read: {error}", file=sys.stderr)
        if root is None:
            named.add(str(path))
    findings.judged(found)
    files = [one for one, _ in found]
    judgements = findings.programs(files, named)
    ran = {}
    if options["run"]:
        how = trial.Options(
            options["args"], options["steps"], options["replicas"], options["time_limit"]
        )
        roots = dict(found)
        for one in judgements:
            root = roots[one.entry]
            beside = [file for file in files if file.source.path.is_relative_to(root)]
            ran[one.entry.file] = trial.tried(one, beside, root, how)
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False, markup=False)
    report.print_programs(console, files, judgements, ran)
    report.print_names(console, files)
    changed = [one for one in files if one.changed]
    if options["diff"] or options["write"]:
        for one in changed:
            print(*report.differences(one), sep="\n")
    if options["write"]:
        for one in changed:
            data = one.source.rebuild(one.after)
            programs.write(one.source.path, data, backup=options["backup"])
    console.print(report.summary(files, judgements, unread))
    console.print(_rewriting(len(changed), written=options["write"]))
    if options["json"]:
        text = json.dumps(report.as_json(files, judgements, unread, ran), indent=1)
        Path(options["json"]).write_text(text + "\n", encoding="utf-8")
    fails = any(outcome.agrees is False for outcome in ran.values())
    return int(bool(unread) or fails or any(True for one in files for _ in one.missing()))


def _rewriting(changed: int, *, written: bool) -> str:
    files = f"{changed} file" + ("" if changed == 1 else "s")
    if written or not changed:
        return f"{files} rewritten."
    return f"{files} to rewrite: --diff shows the changes, --write makes them."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
