"""`python -m replicax._tools.commands NAME OPTIONS`: the commands of `replicax`, but for `run`.

`launch` checks the arguments and starts it; OPTIONS is one JSON object. Imports are inside, because
`doctor` works where JAX is broken, and `top` and `migrate` are fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicax._core.errors import ReplicaxError, UsageError, needs
from replicax._core.folder import named

if TYPE_CHECKING:
    from types import TracebackType

Options = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Do the work of a command; the exit code is 2 for wrong usage or a failing script, else 1."""
    if len(arguments) != 2 or arguments[0] not in WORK:
        usage = f"python -m {__spec__.name} {{{','.join(WORK)}}} OPTIONS"
        print(f"usage: {usage}; see replicax --help", file=sys.stderr)
        return 2
    name, options = arguments[0], json.loads(arguments[1])
    try:
        for kind in ("json", "markdown", "plot"):
            _check_writable(options.get(kind))  # before minutes of work, not after
        return WORK[name](options)
    except ReplicaxError as error:
        trace, at = _of_script(error), ""
        if trace is not None and trace is not error.__traceback__:
            at = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}: "
        print(f"replicax {name}: error: {at}{error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except Exception as error:
        trace = _of_script(error)
        if trace is error.__traceback__:
            raise
        traceback.print_exception(error.with_traceback(trace))
        return 2


def _of_script(error: Exception) -> TracebackType | None:
    """The part of an error's traceback that begins in a script, or all of it without one."""
    found = trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == "runpy":
            found = trace.tb_next
        trace = trace.tb_next
    return found


def _check_writable(file: Any) -> None:
    if isinstance(file, str):
        path = Path(file)
        is_new = not path.exists()
        try:
            open(path, "a").close()
            if is_new:
                path.unlink()  # who waits for the file waits for its contents
        except OSError as error:
            raise UsageError(
                f"Cannot write {file!r}: {error.strerror}. Make its folder, or write elsewhere."
            ) from error


def _write(file: str | None, text: str) -> None:
    if file:
        with named(file):
            Path(file).write_text(text, encoding="utf-8")


def _compare(options: Options) -> int:
    from replicax import report
    from replicax._tools import progress
    from replicax._tools.compare import text
    from replicax._tools.text import make_folder

    folder = make_folder(options.pop("output"))
    text.drawing()  # missing packages are found before minutes of work, not after
    show = options.pop("open", False)
    settings = report.Settings(**options)
    with progress.for_stdout() as listener:
        comparison = report.compare(settings, listener=listener)
    print(f"\n{text.to_text(comparison)}\n", flush=True)  # a full disk does not lose it
    files = text.save(comparison, folder)
    print(f"Written to {folder}: {', '.join(file.name for file in files)}", flush=True)
    if show:
        _show(folder / text.PAGE)
    verdict = text.verdict(comparison)
    if comparison.deviating:
        print(f"replicax compare: error: {verdict}", file=sys.stderr)
        return 1
    print(verdict)
    return 0


def _show(page: Path) -> None:
    """Open a page in the browser, or say where it is."""
    import webbrowser

    try:
        opened = webbrowser.open(page.resolve().as_uri())
    except webbrowser.Error:
        opened = False
    if not opened:
        print(f"replicax compare: found no browser to open {page} in", file=sys.stderr)


def _devices(options: Options) -> int:
    from replicax._tools.compare import devices

    found = devices.devices(options["replicas"])
    print(devices.devices_to_json(found) if options["json"] else devices.devices_to_text(found))
    return 0


def _doctor(options: Options) -> int:
    from replicax._core.env import cores
    from replicax._tools.doctor import text
    from replicax._tools.doctor.checks import WRONG, checked
    from replicax._tools.doctor.facts import gather

    path, found, facts = options["script"], None, gather()
    checks = checked(facts)
    print(text.checks_to_text(checks, only_faults=path is not None), flush=True)
    if path is not None:
        from replicax._tools import progress
        from replicax._tools.doctor.examination import Script, examine

        # A CPU can look like two devices.
        usual = (1, 2) if facts.platform == "cpu" or facts.devices > 1 else (1,)
        script = Script(path, options["args"], options["warm_up"], options["steps"])
        with progress.for_stdout() as listener:
            replicas = sorted(set(options["replicas"] or usual))
            found = examine(script, replicas, listener, workers=options["workers"])
        print(f"\n{text.examination_to_text(found, cores(), facts.platform)}", flush=True)
    _write(options["json"], text.to_json(checks, found))
    return int(any(check.level == WRONG for check in checks))


def _migrate(options: Options) -> int:
    with needs("`replicax migrate`", extra="migrate"):
        import libcst as libcst
    from rich.console import Console

    from replicax._tools.migrate import findings, programs, report, trial
    from replicax._tools.text import as_json, counted

    if options["backup"] and not options["write"]:
        raise UsageError("Cannot use --backup without --write. Add --write to change the files.")
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
    ran = trial.tried(judgements, found, options) if options["run"] else {}
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
    done = options["write"] or not changed
    hint = "rewritten." if done else "to rewrite: --diff shows the changes, --write makes them."
    console.print(f"{counted(len(changed), 'file')} {hint}")
    _write(options["json"], as_json(report.as_data(files, judgements, unread, ran)))
    fails = any(outcome.agrees is False for outcome in ran.values())
    return int(bool(unread) or fails or any(True for one in files for _ in one.missing()))


def _plan(options: Options) -> int:
    import keras

    from replicax._tools import progress
    from replicax._tools.plan.planned_step import load
    from replicax._tools.plan.planning import plan
    from replicax._tools.plan.result import drawing
    from replicax._tools.plan.targets import target

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
    with progress.for_stdout() as listener:
        found = plan(
            planned,
            topologies=options["topologies"],
            strategies=options["strategies"],
            batch_size=options["batch"],
            find_largest=options["bisect"],
            scale=options["scale"],
            listener=listener,
        )
    print(f"\n{found.table()}", flush=True)
    _write(options["json"], found.to_json())
    if options["plot"]:
        found.plot(options["plot"])
    return 0


def _profile(options: Options) -> int:
    if options["log"]:
        with open(options["log"], "a") as log:  # even the output of native code
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
    import jax

    from replicax._tools import progress
    from replicax._tools.profile import text
    from replicax._tools.profile.recorder import Plan, profile_script
    from replicax._tools.text import make_folder, milliseconds

    plan = Plan(options["warm_up"], options["steps"], options["traced"])
    with progress.for_stdout() as listener:
        listener.begin(Path(options["script"]).name, steps=plan.total)
        found = profile_script(
            options["script"],
            options["args"],
            plan=plan,
            folder=make_folder(options["output"]) if plan.traced else None,
            replicas=options["replicas"],
            of_workers=options["of_workers"],
            scale=options["scale"],
            on_step=lambda number: listener.advance(),
        )
        listener.end(f"{milliseconds(found.seconds)} a step")
    # Each of several workers has its own numbers.
    worker = f".{jax.process_index()}" if options["of_workers"] else ""
    _write(options["json"] and options["json"] + worker, text.to_json(found))
    _write(options["markdown"], text.to_markdown(found))
    print(f"\n{text.to_text(found)}", flush=True)
    return 0


def _top(options: Options) -> int:
    from replicax._tools.top import show

    return show(options["source"], once=options["once"])


def _verify(options: Options) -> int:
    import jax

    from replicax._tools import progress
    from replicax._tools.script import run_program
    from replicax._tools.verify.verifying import verify_program

    script, given = options["target"], options["args"]

    def program() -> None:
        try:
            run_program(script, given, forget=True)
        finally:  # the script may end anywhere, and its measuring would go on
            with contextlib.suppress(RuntimeError):
                jax.profiler.stop_trace()

    with progress.for_stdout() as listener:
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
    _write(options["json"], found.to_json())
    return 0 if found.is_equal else 1


WORK = {
    "compare": _compare,
    "devices": _devices,
    "doctor": _doctor,
    "migrate": _migrate,
    "plan": _plan,
    "profile": _profile,
    "top": _top,
    "verify": _verify,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
