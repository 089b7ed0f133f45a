"""Runs a migrated program for a few steps, in a copy, in a process of its own that is ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicax._processes.rules import sigterm_as_exit
from replicax._tools.migrate.findings import RUNS, Findings, Judgement
from replicax._tools.migrate.programs import is_skipped, piece_of

Options = Mapping[str, Any]  # of the command line

_RESULT = ".replicax-trial.json"
_MOST_FILES, _MOST_BYTES = 2_000, 200_000_000  # the most that is copied beside the program
# Errors of a program that lacks data, arguments or a package say nothing of the verdict.
_OF_THE_MACHINE = (
    "ConnectionError", "FileNotFoundError", "ModuleNotFoundError", "NotFoundError", "SystemExit",
    "URLError",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """The result of a run, in words; and whether it agrees with the verdict, if known."""

    text: str
    agrees: bool | None


def tried(
    judgements: Sequence[Judgement], found: Sequence[tuple[Findings, Path]], options: Options
) -> dict[str, Outcome]:
    """Run each program, under `MirroredStrategy`, from a copy of its folder.

    In the copy all files are rewritten. The program is ended after a number of training steps or of
    seconds, whichever comes first.
    """
    roots, outcomes = dict(found), {}
    for one in judgements:
        root = roots[one.entry]
        beside = [file for file in roots if file.source.path.is_relative_to(root)]
        outcomes[one.entry.file] = _tried(one, beside, root, options)
    return outcomes


def _tried(
    judgement: Judgement, found: Sequence[Findings], root: Path, options: Options
) -> Outcome:
    names = {name for one in judgement.files for name in one.uses}
    if any("ParameterServer" in name for name in names):
        return Outcome("not run: parameter servers are processes of their own", None)
    # As an exit: the child's group is killed and the copy removed where the blocks end.
    with sigterm_as_exit(), tempfile.TemporaryDirectory(prefix="replicax-") as folder:
        script = _copied(judgement.entry, found, root, Path(folder))
        return _compared(judgement, _result(script, Path(folder), options), options)


def _copied(entry: Findings, found: Sequence[Findings], root: Path, folder: Path) -> Path:
    """Copy a folder with its programs rewritten; return the script, also for a notebook."""
    count = size = 0
    for above, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not is_skipped(name))
        to = folder / Path(above).relative_to(root)
        to.mkdir(exist_ok=True)
        for name in sorted(files):
            path = Path(above, name)
            if path.is_file():  # no pipe, and no link to nowhere
                count, size = count + 1, size + path.stat().st_size
                if count > _MOST_FILES:
                    names.clear()
                elif size <= _MOST_BYTES:
                    with contextlib.suppress(OSError):  # unreadable
                        shutil.copyfile(path, to / name)
    for one in found:
        path = folder / one.source.path.relative_to(root)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(one.source.rebuild(one.after))
    script = folder / entry.source.path.relative_to(root)
    if script.suffix == ".ipynb":
        cells = map(piece_of, entry.after)
        texts = [cell.text for cell in cells if cell and not cell.alone]
        script = script.with_suffix(".cells.py")
        script.write_text("\n".join(texts), encoding="utf-8")
    return script


def _result(script: Path, folder: Path, options: Options) -> dict[str, Any] | None:
    """The result that the child process writes; None if it did not end in time."""
    request = {name: options[name] for name in ("args", "steps", "replicas")}
    request |= {"script": str(script), "result": str(folder / _RESULT)}
    with open(folder / ".replicax-trial.log", "w+b") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "replicax._tools.migrate.trial", json.dumps(request)],
            cwd=script.parent,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            child.wait(options["time_limit"])
        except subprocess.TimeoutExpired:
            return None
        finally:  # and all that it has started
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        try:
            return json.loads((folder / _RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # it ended without a result: a crash, `os._exit`
            error = f"the process ended with code {child.returncode}"
            return {"steps": 0, "ended": False, "error": "SystemExit", "text": error, "places": []}


def _compared(judgement: Judgement, result: dict[str, Any] | None, options: Options) -> Outcome:
    if result is None:
        return Outcome(f"did not end within {options['time_limit']:g} s; inconclusive", None)
    runs, error = judgement.verdict == RUNS, result["error"]
    text = f"made {result['steps']} steps on {options['replicas']} devices"
    if error is None:
        text += "" if result["ended"] else " and ended by itself"
        agrees = True if runs else (None if result["ended"] else False)
    else:
        places = [(Path(file).name, line) for file, line in result["places"]]
        lines = {(Path(lack.place.file).name, lack.place.line) for lack in judgement.missing}
        # An import inserted above moves lines by one.
        expected = any((name, line - by) in lines for name, line in places for by in (0, 1))
        is_lacking = error in _OF_THE_MACHINE or result["text"].startswith("URL fetch failure")
        agrees = True if expected else (None if is_lacking else False)
        at = f" at {places[-1][0]}:{places[-1][1]}" if places else ""
        text += f", then {error}{at}: {result['text']}"
    verdict = {True: "agrees", False: "does not agree", None: "inconclusive"}[agrees]
    return Outcome(f"{text}; {verdict}", agrees)


def main(arguments: list[str]) -> None:
    """Run a program, write what happened, and end this process with all that it started."""
    request = json.loads(arguments[0])
    result: dict[str, Any] = {"steps": 0, "ended": True, "error": None, "text": "", "places": []}
    try:
        _train(request, result)
    except BaseException as error:
        folder = str(Path(request["result"]).parent)
        frames = traceback.extract_tb(error.__traceback__)
        result["places"] = [
            (frame.filename, frame.lineno) for frame in frames if frame.filename.startswith(folder)
        ]
        lines = str(error).strip().splitlines() or [""]
        result.update(error=type(error).__name__, text=lines[0])
    Path(request["result"]).write_text(json.dumps(result), encoding="utf-8")
    os.killpg(0, signal.SIGKILL)


def _train(request: dict[str, Any], result: dict[str, Any]) -> None:
    import replicax as rx
    from replicax._core import events
    from replicax._tools.script import NO_TRAINING, ended_after, run_program, under

    def begin(doing: str) -> None:
        result["steps"] += doing not in NO_TRAINING

    strategy = rx.MirroredStrategy([f"CPU:{number}" for number in range(request["replicas"])])
    end = events.listen(begin)
    with under(strategy), ended_after(request["steps"]):
        run_program(request["script"], request["args"])
        result["ended"] = False
    end()
    result["steps"] = min(result["steps"], request["steps"])


if __name__ == "__main__":
    main(sys.argv[1:])
