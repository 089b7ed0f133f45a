"""Runs public programs for TensorFlow with the imports rewritten, and asks `replicax migrate`.

    python tests/guides/programs.py checkouts --json found.json

`programs.toml` lists them; `checkouts` has their repositories, cloned as owner+name. Each program
is copied to a temporary folder, judged and rewritten by `replicax migrate`, and run in a process of
its own: on two virtual devices, with TensorFlow blocked, on made-up data, until it ends, has made
200 steps or its time is over; `fit` ends after 20 batches. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
BATCHES = 20  # `fit` ends after this many
STEPS = 200  # a loop ends after this many, with its program
# What `replicax migrate` misses is there.
_STOOD_IN = re.compile("|".join(f"`{path.stem}" for path in (HERE / "stand_ins").glob("*.py")))
# A program that stops with one of these lacks what is not TensorFlow: data, time, a package,
# IPython, or the NumPy and Matplotlib of its day.
_LACKING = (
    *("FileNotFoundError", "ImportError", "ModuleNotFoundError", "SystemExit", "TimeoutError"),
    *("TypeError: Only scalar arrays can be conv", "ValueError: The number of FixedLocator"),
    *("ValueError: Key pgf.preamble", "AttributeError: module 'tensorflow_datasets'"),
    *("NameError: name 'test_dataset'",),  # which the program nowhere defines
    *("ValueError: setting an array element with a sequence",),  # until NumPy 1.24 of objects
    *("Exception: URL fetch failure", "AttributeError: `np.", "NameError: name 'get_ipython'"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, help="the folder with the repositories")
    parser.add_argument("--only", default="", help="programs with this in their name")
    parser.add_argument("--seconds", type=int, default=240, help="limit for a program")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--json", type=Path, help="also write what was found to this file")
    arguments = parser.parse_args()
    if importlib.util.find_spec("tensorflow"):
        parser.error("TensorFlow is installed here, which a program could import")
    listed = tomllib.loads((HERE / "programs.toml").read_text())
    chosen = [
        {"repository": repository, "commit": programs["commit"], "path": path, **how}
        for repository, programs in listed.items()
        for path, how in programs.items()
        if path != "commit" and arguments.only in f"{repository}/{path}"
    ]
    found = []
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for one in pool.map(lambda one: tried(one, arguments.checkouts, arguments.seconds), chosen):
            found.append(one)
            print(row(one), flush=True)
    runs, agreed = (sum(bool(one[key]) for one in found) for key in ("runs", "agrees"))
    print(f"{runs} of {len(found)} run; `replicax migrate` agrees with {agreed}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


def row(one: dict) -> str:
    happened = one["note"] if one["runs"] else f"stops: {one['error']}"
    agrees = {True: "yes", False: "no", None: "inconclusive"}[one["agrees"]]
    return f"| `{one['repository']}` | `{one['path']}` | {happened} | {one['verdict']} | {agrees} |"


def tried(program: dict, checkouts: Path, seconds: int) -> dict:
    """What `replicax migrate` says of a program, and what happens when it runs."""
    with tempfile.TemporaryDirectory() as folder:
        script = extracted(program, checkouts, Path(folder))
        judged = verdict(script, script.parents[len(Path(program["path"]).parts) - 1], program)
        listed = [(Path(lack["file"]).name, lack["line"]) for lack in judged["missing"]]
        make_data(program.get("data", {}), script.parent)
        result = run(script, program.get("arguments", ""), listed, seconds, program)
    error = result["error"]
    if error is None:
        # What is missing at a line that the program did not come to is no disagreement.
        agrees = not listed or not result["reached"]
    elif any(tuple(place) in near(listed) for place in result["places"]):
        agrees = True
    elif any(name in error for lack in judged["missing"] for name in named(lack["what"])):
        agrees = True  # a method, and the error is of its class
    else:
        says_nothing = error.startswith(_LACKING) or program.get("stops_in_tensorflow")
        agrees = None if says_nothing else False
    return {
        **{key: program[key] for key in ("repository", "commit", "path")},
        **{"runs": error is None, "agrees": agrees, "verdict": judged["verdict"]},
        **{"missing": judged["missing"], **result},
    }


def named(what: str) -> list[str]:
    """The method that something is missing of, or the namespace."""
    return re.findall(r"^`(\w+\.\w+)[.`]", what)


def near(places: list) -> set:
    """Those places, and the lines below: an import that was put in above moves them by one."""
    return {(name, line + by) for name, line in places for by in (0, 1)}


def extracted(program: dict, checkouts: Path, folder: Path) -> Path:
    """The program from its checkout: its file, or the folders and files that it names beside it."""
    checkout = checkouts / program["repository"].replace("/", "+")
    if (checkout / "repo").is_dir():
        checkout /= "repo"
    parts = [program["path"], *program.get("with", [])]
    archive = ["git", "-C", str(checkout), "archive", program["commit"], "--", *parts]
    tar = subprocess.run(archive, check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(folder)], input=tar, check=True)
    return folder / program["path"]


def verdict(script: Path, folder: Path, program: dict) -> dict:
    """What `replicax migrate` says; it also rewrites the program, and what it imports."""
    with tempfile.TemporaryDirectory() as aside:
        answer = Path(aside, "answer.json")
        command = [sys.executable, "-m", "replicax", "migrate"]
        command += [str(folder if program.get("with") else script), "--write", "--json"]
        subprocess.run([*command, str(answer)], capture_output=True)
        programs = json.loads(answer.read_text())["programs"]
    judged = next(one for one in programs if Path(one["program"]) == script)
    found = [one for one in judged["missing"] if not _STOOD_IN.match(one["what"])]
    if judged["missing"] and not found:
        judged["verdict"] = "runs as it is"
    return {**judged, "missing": found}


def make_data(data: dict, folder: Path) -> None:
    """Files of made-up data: a path and what is there."""
    sys.path.insert(0, str(HERE / "stand_ins"))
    import made_up_data

    for path, kind in data.items():
        made_up_data.write(folder / path, kind)


def run(script: Path, arguments: str, listed: list, seconds: int, program: dict) -> dict:
    """Run a program in a process of its own: whether it ended, how many steps, which error."""
    home = script.parent / ".home"
    environ = {**os.environ, "KERAS_BACKEND": "jax", "JAX_NUM_CPU_DEVICES": "2", "NPROC": "2"}
    environ |= {"RX_TPU_FALLBACK": "cpu", "MPLBACKEND": "agg", "KERAS_HOME": str(home)}
    environ |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    environ |= program.get("environment", {})
    if known := os.environ.get("PYTHONPATH"):  # packages that programs need
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([environ["PYTHONPATH"], known]))
    result = script.parent / ".result.json"
    request = {"script": str(script), "arguments": shlex.split(arguments), "listed": listed}
    request["folder"] = str(script.parents[len(Path(program["path"]).parts) - 1])
    request |= {"seconds": seconds, "result": str(result)}
    with (script.parent / ".log").open("w+b") as log, contextlib.ExitStack() as stack:

        def start(request: dict, environ: dict) -> subprocess.Popen:
            child = subprocess.Popen(
                [sys.executable, __file__, "--inside", json.dumps(request)],
                **{
                    "cwd": script.parent / program.get("folder", ""),
                    "env": environ,
                    "stdin": subprocess.DEVNULL,
                },
                **{"stdout": log, "stderr": log, "start_new_session": True},
            )
            stack.callback(end, child)
            return child

        for other in program.get("others", []):
            cluster = json.loads(environ["TF_CONFIG"]) | {"task": {"type": other, "index": 0}}
            aside = request | {"result": os.devnull}
            start(aside, environ | {"TF_CONFIG": json.dumps(cluster)})
        child = start(request, environ)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds + 60)
    if result.is_file():
        return json.loads(result.read_text())
    error = f"SystemExit: ended with code {child.returncode}"
    return {"error": error, "places": [], "reached": False, "steps": 0, "note": ""}


def end(child: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def run_inside(request: dict) -> None:
    """Run the program here, and write down what happened."""
    sys.path.insert(0, str(HERE / "stand_ins"))
    import keras
    import made_up_data

    import replicax.tf as tf
    from replicax._core import events
    from replicax._tools.script import run_program

    made_up_data.install(tf, 60_000, 10_000)
    tf.keras.utils.get_file = made_up_data.downloaded
    steps = 0

    def begin(_doing: str) -> None:
        nonlocal steps
        steps += 1
        if steps == STEPS:
            result["note"] = f"trains, {steps} steps"
            tell()
            os._exit(0)

    def counted(original):
        def apply(self, *arguments, **options):
            begin("update")
            return original(self, *arguments, **options)

        return apply

    class Ending(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= BATCHES

    def shorter(original):
        def fit(self, *arguments, **options):
            options["callbacks"] = [*(options.get("callbacks") or ()), Ending()]
            return original(self, *arguments, **options)

        return fit

    events.listen(begin)
    keras.optimizers.Optimizer.apply = counted(keras.optimizers.Optimizer.apply)
    # The class that has it: a method of `Model` would hide what layers of text put there later.
    owner = next(one for one in keras.Model.__mro__ if "fit" in vars(one))
    owner.fit = shorter(owner.fit)
    result = {"error": None, "places": [], "note": "runs to its end"}
    reached = watched(request["listed"])

    def tell() -> None:
        result.update(steps=steps, reached=bool(reached))
        Path(request["result"]).write_text(json.dumps(result))

    def over() -> None:
        result["note"] = f"trains until its time is over, {steps} steps"
        if not steps:
            result["error"] = f"TimeoutError: no step within {request['seconds']} s"
        tell()
        os._exit(0)

    timer = threading.Timer(request["seconds"], over)
    timer.start()
    try:
        run_program(request["script"], request["arguments"])
    except BaseException as error:
        traceback.print_exc()
        folder = request["folder"]
        frames = traceback.extract_tb(error.__traceback__)
        result["places"] = [
            (Path(frame.filename).name, frame.lineno)
            for frame in frames
            if frame.filename.startswith(folder)
        ]
        result["error"] = f"{type(error).__name__}: {first_line(error)}"
    timer.cancel()
    tell()
    os._exit(0)  # threads of the program, and the timer, are not waited for


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:160]


def watched(places: list) -> set:
    """The places of those at which the program comes by; they are watched from now on."""
    reached, lines = set(), near(places)
    files = {name for name, _ in lines}

    def trace(frame, event, _argument):
        name = os.path.basename(frame.f_code.co_filename)
        if name not in files:
            return None
        if (name, frame.f_lineno) in lines:
            reached.add((name, frame.f_lineno))
        return trace

    if places:
        sys.settrace(trace)
    return reached


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        run_inside(json.loads(sys.argv[2]))
    else:
        main()
