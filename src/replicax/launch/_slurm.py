"""`replicax slurm`: the batch script of a program, printed or handed to `sbatch`."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from replicax._core.errors import UsageError
from replicax.launch._plan import Program

if TYPE_CHECKING:
    from collections.abc import Sequence

_BAD_ARGUMENT = 2
# Slurm's clock for signals has steps of a minute: what is left may be less than this by so much.
_SECONDS_BEFORE_THE_END = 120
_SECONDS_TO_SAVE = 60

# Without ALL a site's setting may keep the environment, and the secret, from the tasks.
_SRUN = ("--kill-on-bad-exit=1", "--distribution=block", "--export=ALL")

# srun passes on the exit code: 42 of a program that has saved its state, 143 after SIGTERM.
_AGAIN = """\
code=$?
case $code in 42|143)
    if [ "${{SLURM_RESTART_COUNT:-0}}" -lt {times} ]; then scontrol requeue "$SLURM_JOB_ID"; fi ;;
esac
exit $code
"""


@final
@dataclass(frozen=True)
class Batch:
    """What was asked for; see `replicax slurm --help`.

    Example:
        >>> from replicax.launch._slurm import Batch
        >>> print(Batch("train.py", nodes=2).text.splitlines()[-1])
        srun --kill-on-bad-exit=1 --distribution=block --export=ALL replicax run --grace 60 train.py
    """

    script: str
    args: Sequence[str] = ()
    is_module: bool = False
    nodes: int = 1
    workers_per_node: int = 1
    gpus_per_node: int | None = None
    cpus_per_worker: int | None = None
    time: str | None = None
    partition: str | None = None
    name: str | None = None
    max_restarts: int = 0
    sbatch: Sequence[str] = ()
    submit: bool = False

    @property
    def text(self) -> str:
        """The batch script."""
        asked = {
            "job-name": self.name or _plain(name_of(self.script)),
            "nodes": self.nodes,
            "ntasks-per-node": self.workers_per_node,
            "gpus-per-node": self.gpus_per_node,
            "cpus-per-task": self.cpus_per_worker,
            "time": self.time,
            "partition": self.partition,
            # To the steps, so that workers can save.
            "signal": f"TERM@{_SECONDS_BEFORE_THE_END}" if self.time else None,
        }
        options = [f"--{name}={_word(value)}" for name, value in asked.items() if value is not None]
        again = ["--requeue", "--open-mode=append"] if self.max_restarts else []
        run = ["replicax", "run", "--grace", str(_SECONDS_TO_SAVE)]
        program = Program(self.script, tuple(self.args), is_module=self.is_module)
        lines = [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in [*options, *again, *map(_option, self.sbatch)]),
            "# The environment brings the secret to all tasks; no command line shows it.",
            "RX_CLUSTER_SECRET=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
            ': "${RX_CLUSTER_SECRET:?could not be made}"',
            "export RX_CLUSTER_SECRET",
            f"srun {' '.join(_SRUN)} {shlex.join([*run, *program.words])}",
        ]
        last = _AGAIN.format(times=self.max_restarts) if self.max_restarts else ""
        return "\n".join(lines) + "\n" + last


def name_of(script: str) -> str:
    """A name for the job of a program.

    Example:
        >>> from replicax.launch._slurm import name_of
        >>> name_of("jobs/train_big.py"), name_of("pkg.train")
        ('train_big', 'train')
    """
    last = script.rstrip("/").rpartition("/")[2].removesuffix(".py")
    return last.rpartition(".")[2] or "train"


def _plain(name: str) -> str:
    return re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-") or "train"


def _option(text: str) -> str:
    """An option of the user's, whose value the shell has already freed of its quotes."""
    name, equals, value = text.partition("=")
    return f"{name}={_word(value)}" if equals and re.fullmatch("--[a-z-]+", name) else _line(text)


def _word(value: str | int) -> str:
    """A value in quotes where sbatch needs them; it reads a backslash as a shell does."""
    text = _line(str(value))
    if re.fullmatch(r"[\w.:,/=@%+*()\[\]-]+", text):
        return text
    return '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'


def _line(text: str) -> str:
    if len(text.splitlines()) > 1 or text.endswith(("\n", "\r")):
        raise UsageError(
            f"An option of sbatch must be one line, got {text!r}. Remove the line break."
        )
    return text


def write_or_submit(batch: Batch) -> int:
    """Print the script, or hand it to `sbatch`; return the exit code."""
    if not batch.submit:
        print(batch.text, end="", flush=True)
        return 0
    try:
        return subprocess.run(["sbatch"], input=batch.text, text=True).returncode
    except OSError as error:
        print(
            f"replicax slurm: error: cannot run sbatch for --submit: {error.strerror}. Run this "
            "on a machine with Slurm, or leave out --submit and take the script there.",
            file=sys.stderr,
        )
        return _BAD_ARGUMENT
