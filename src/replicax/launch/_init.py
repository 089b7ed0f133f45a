"""`replicax init`: a first script, a notebook, or the job of a cluster, from a few questions."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

from replicax._core.errors import ReplicaxError, UsageError, did_you_mean
from replicax.launch._batch_arguments import image_name
from replicax.launch._run_arguments import Commands, add_number, positive

_INIT = """\
Write a first program, or the job that runs one on a cluster, and say how to start it. What no
option tells is asked, in four questions at most; with --yes, or without a terminal, the default is
taken. A file that exists is not changed."""

_EXAMPLES = """\
examples:
  replicax init
  replicax init script --strategy multi_worker --yes
  replicax init slurm --workers 4 --program train.py

exit code: 0; 2 for a bad argument, or a file that exists."""

# The kind of file → its usual name.
_KINDS = {
    "script": "train.py",
    "notebook": "train.ipynb",
    "slurm": "train.sbatch",
    "k8s": "train.yaml",
}
# Options that other kinds have no use for.
_OPTIONS = {
    "strategy": ("script", "notebook"),
    "program": ("slurm", "k8s"),
    "workers": ("slurm", "k8s"),
    "image": ("k8s",),
}
# How a program makes its strategy, and how the program is started.
_STRATEGIES = {
    "mirrored": ("rx.MirroredStrategy()", "python {}"),
    "multi_worker": ("rx.MultiWorkerMirroredStrategy()", "replicax run --workers 2 {}"),
    "tpu": ("rx.TPUStrategy()", "python {}"),
    "parameter_server": ("rx.ParameterServerStrategy(num_workers=2, num_ps=1)", "python {}"),
}

# The parts of a program, which are cells of a notebook. Only `{strategy}` is replaced.
_PARTS = (
    """\
import replicax as rx  # before Keras: it chooses the JAX backend

import keras
import numpy as np

strategy = {strategy}
print(strategy)""",
    """\
# Your model: everything that makes variables stands in the scope.
with strategy.scope():
    model = keras.Sequential(
        [keras.Input((16,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(1)]
    )
    model.compile("adam", "mse")""",
    """\
# Your data: arrays, or a data set of `rx.data`, whose batches are divided over all replicas.
random = np.random.default_rng(0)
x = random.normal(size=(1024, 16)).astype("float32")
y = x.sum(axis=1, keepdims=True)""",
    """\
model.fit(x, y, batch_size=128, epochs=5, validation_split=0.25)
if strategy.extended.should_checkpoint:  # of several workers, the first
    model.save("model.keras")""",
)
_BAD_ARGUMENT = 2
_INTERRUPTED = 130


def add_init(commands: Commands) -> None:
    parser = commands.add_parser(
        "init",
        help="write a first script, a notebook, or a job for Slurm or Kubernetes",
        usage="replicax init [script|notebook|slurm|k8s] [options]",
        description=_INIT,
        epilog=_EXAMPLES,
    )
    parser.add_argument("kind", nargs="?", choices=_KINDS, help="(default: script)")
    parser.add_argument(
        "--strategy", choices=_STRATEGIES, help="of a script or notebook (default: mirrored)"
    )
    parser.add_argument(
        "--program",
        metavar="FILE",
        help="the program of a job; for k8s its path in the image (default: train.py)",
    )
    add_number(parser, "--workers", "N", "the workers of a job, one a node (default: 2)")
    parser.add_argument(
        "--image",
        type=image_name,
        help="an image with Replicax and the program; for k8s, required",
    )
    parser.add_argument(
        "--output", metavar="FILE", help="(default: train.py, .ipynb, .sbatch or .yaml)"
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing")


def init(request: dict[str, Any]) -> int:
    """Ask what is not known, write the file, and say what comes next; return the exit code."""
    asks = not request["yes"] and sys.stdin.isatty()
    try:
        text, file, start = _made(_Answers(request, asks=asks))
        # A job of Kubernetes holds the secret of its cluster.
        mode = 0o600 if request["kind"] == "k8s" else 0o666
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as written:
            written.write(text)
    except (EOFError, KeyboardInterrupt):
        print("\nreplicax: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except FileExistsError as error:
        return _refused(f"{error.filename} exists already. Pass another file as --output.")
    except OSError as error:
        return _refused(f"cannot write {error.filename!r}: {error.strerror}.")
    except ReplicaxError as error:
        return _refused(str(error))
    print(f"wrote {file}\nstart it: {start}")
    return 0


def _refused(why: str) -> int:
    print(f"replicax init: error: {why}", file=sys.stderr)
    return _BAD_ARGUMENT


class _Answers:
    """Answers from the options, else from the user."""

    def __init__(self, request: dict[str, Any], *, asks: bool) -> None:
        self._request, self._asks = request, asks

    def get(self, name: str, question: str, default: Any, read: Callable[[str], Any] = str) -> Any:
        """The answer to a question; Enter takes the default. Without a question it is not asked."""
        answer = self._request[name]
        while answer is None and self._asks and question:
            typed = input(f"{question} [{default}]: " if default else f"{question}: ").strip()
            try:
                answer = read(typed or str(default))
            except argparse.ArgumentTypeError as error:
                print(f"  {error}")
        self._request[name] = default if answer is None else answer
        return self._request[name]

    def refuse_unused(self, kind: str) -> None:
        """Refuse an option that this kind has no use for."""
        for name, kinds in _OPTIONS.items():
            if self._request[name] is not None and kind not in kinds:
                raise UsageError(f"--{name} is for {' and '.join(kinds)}, not for {kind}.")


def _one_of(known: dict[str, Any]) -> Callable[[str], str]:
    def read(typed: str) -> str:
        if typed not in known:
            raise argparse.ArgumentTypeError(
                f"must be one of {', '.join(known)}.{did_you_mean(typed, known)}"
            )
        return typed

    return read


def _made(answers: _Answers) -> tuple[str, Path, str]:
    """The text, its file, and the command that starts it."""
    kind = answers.get("kind", f"Write a {' · '.join(_KINDS)}", "script", _one_of(_KINDS))
    answers.refuse_unused(kind)
    if kind in ("slurm", "k8s"):
        return _job(kind, answers)
    names = " · ".join(_STRATEGIES)
    name = answers.get("strategy", f"Strategy: {names}", "mirrored", _one_of(_STRATEGIES))
    file = Path(answers.get("output", "File", _KINDS[kind]))
    strategy, start = _STRATEGIES[name]
    parts = [part.replace("{strategy}", strategy) for part in _PARTS]
    if kind == "notebook":
        return _notebook(parts), file, f"jupyter lab {quote(str(file))}"
    quoted = quote(str(file))
    start = start.format(quoted)
    how = f" Start it: `{start}`." if quoted == str(file) else ""
    title = f'"""Train a model.{how}"""'
    return "\n\n".join([title, *parts]) + "\n", file, start


def _notebook(parts: list[str]) -> str:
    cells: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": {},
            "outputs": [],
            "source": part.splitlines(keepends=True),
        }
        for number, part in enumerate(parts)
    ]
    book: dict[str, Any] = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(book, indent=1) + "\n"


def _job(kind: str, answers: _Answers) -> tuple[str, Path, str]:
    program = answers.get("program", "Program", "train.py")
    workers = answers.get("workers", "Workers, one a node", 2, positive)
    if kind == "slurm":
        from replicax.launch._jobs import Batch

        file = Path(answers.get("output", "File", _KINDS[kind]))
        return Batch(program, nodes=workers).text, file, f"sbatch {quote(str(file))}"
    from replicax.launch._jobs import Manifests

    image = answers.get("image", "Image", "", image_name)
    if not image:
        raise UsageError("--image is required. Name an image with Replicax and the program.")
    file = Path(answers.get("output", "", _KINDS[kind]))
    return (
        Manifests(program, image, workers=workers).text,
        file,
        f"kubectl apply -f {quote(str(file))}",
    )
