"""Trains a script on several numbers of replicas, each in a process of its own."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicax._core.env import environment_for_child
from replicax._core.errors import UsageError
from replicax._tools.doctor.conclusions import (
    STRONG,
    WEAK,
    Finding,
    Point,
    advice,
    findings,
    points,
    wanted_rows,
)
from replicax._tools.machine import OtherPrograms
from replicax._tools.profile.result import Profile
from replicax._tools.text import milliseconds
from replicax.launch._child import run_child
from replicax.launch._environments import of_profile

if TYPE_CHECKING:
    from replicax._tools.progress import Listener


# lines of a failed script's output
_LINES = 15


@dataclass(frozen=True)
class Examination:
    """How a script trains on several numbers of replicas, from the fewest to the most."""

    script: str
    profiles: tuple[Profile, ...]
    workers: tuple[Profile, ...]  # of a cluster of this machine, if that was asked for
    scaling: Mapping[str, tuple[Point, ...]]  # by `STRONG` and `WEAK`, where it can be measured
    findings: tuple[Finding, ...]  # on the most replicas, the largest first
    advice: Finding  # the first thing to do
    busy_cores: float = 0.0  # that other programs took meanwhile, on the average


@dataclass(frozen=True)
class Script:
    """A script and the length of its run: `steps` are measured, after `warm_up` others."""

    path: str
    args: Sequence[str]
    warm_up: int
    steps: int

    def profile(self, replicas: int, scale: float = 1.0) -> Profile:
        """Its profile on this many replicas; each batch gets `scale` times its rows."""
        (found,) = self._run([sys.executable], replicas, replicas=replicas, scale=scale)
        return found

    def of_workers(self, count: int) -> tuple[Profile, ...]:
        """The profiles of all workers of a cluster, each a process here with one device of the CPU.

        So any number of them fits, also where `JAX_PLATFORMS` names GPUs.
        """
        run = ["replicax.launch", "run", "--workers", str(count), "--devices-per-worker", "1"]
        return self._run([sys.executable, "-m", *run], count, of_workers=True)

    def _run(self, start: Sequence[str], devices: int, **how: Any) -> tuple[Profile, ...]:
        """Start processes that profile; return their results in the order of workers."""
        with tempfile.TemporaryDirectory() as folder:
            log, found = Path(folder, "log"), Path(folder, "profile.json")
            options = {
                "script": self.path,
                "args": list(self.args),
                "replicas": None,
                "of_workers": False,
                "scale": 1.0,
                "warm_up": self.warm_up,
                "steps": self.steps,
                "traced": 5,
                "output": str(Path(folder, "trace")),
                "json": str(found),
                "markdown": None,
                "log": str(log),
            }
            child = [*start, "-m", "replicax._tools.commands", "profile", json.dumps(options | how)]
            own = environment_for_child({"JAX_PLATFORMS": "cpu"} if how.get("of_workers") else {})
            code = run_child(child, of_profile(own, devices))
            if code:
                printed = log.read_text(errors="replace") if log.exists() else ""
                raise failed(self.path, devices, code, printed)
            texts = [file.read_text(encoding="utf-8") for file in _by_worker(found)]
        # the traces are removed
        return tuple(replace(Profile.of_data(json.loads(text)), trace=None) for text in texts)


def _by_worker(file: Path) -> list[Path]:
    """A file, or the files of workers, which have numbers behind the name."""
    return sorted(file.parent.glob(f"{file.name}*"), key=lambda one: (len(one.name), one.name))


def examine(
    script: Script, replicas: Sequence[int], listener: Listener, *, workers: int | None = None
) -> Examination:
    """Train a script on each number of replicas, as it is and with batches of other sizes.

    If asked, also on this many workers; `listener` receives the progress.
    """
    listener.begin(Path(script.path).name, steps=2 * len(replicas) - 1 + bool(workers))
    profiles, others = list[Profile](), OtherPrograms()
    of_kind: dict[str, list[Profile]] = {STRONG: [], WEAK: []}
    for number in replicas:
        plain = _heard(listener, script.profile(number))
        profiles.append(plain)
        for kind, found in of_kind.items():
            rows = wanted_rows(kind, profiles[0], number)
            if rows is None or plain.rows is None:
                continue
            other = plain.rows != rows
            found.append(
                _heard(listener, script.profile(number, rows / plain.rows)) if other else plain
            )
    cluster: tuple[Profile, ...] = ()
    if workers:
        cluster = script.of_workers(workers)
        listener.advance()
    causes = findings(profiles[-1], cluster)
    first = advice(causes, profiles[-1])
    listener.end(first.cause)
    return Examination(
        script.path,
        tuple(profiles),
        cluster,
        {kind: points(kind, found) for kind, found in of_kind.items() if len(found) > 1},
        tuple(causes),
        first,
        others.cores(),
    )


def failed(path: str, replicas: int, code: int, printed: str) -> UsageError:
    tail = "\n".join(printed.splitlines()[-_LINES:])
    return UsageError(
        f"{path!r} ended with exit code {code} on {replicas} replica(s). Run `replicax profile "
        f"{path} --replicas {replicas}` to see all that it printed. Its last lines:\n{tail}"
    )


def _heard(listener: Listener, profile: Profile) -> Profile:
    listener.advance()
    rows = "" if profile.rows is None else f", {profile.rows} rows"
    listener.report(f"{profile.replicas} replica(s){rows}: {milliseconds(profile.seconds)} a step")
    return profile
