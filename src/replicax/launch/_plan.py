"""The arguments and the environment of each worker, planned without starting anything.

Ports are chosen in `_ports.py`, hosts are read in `_ssh.py`, processes start in `_processes`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from replicax._core.env import (
    JAX_PLATFORMS,
    RX_PROCESSES_HERE,
    cpu_tuning_parts,
    tuning_for_child,
)
from replicax._core.errors import UsageError
from replicax._core.machine.nvidia import own_gpus, shared_gpus, usable_gpus
from replicax._processes.child import RX_RESTART, ProcessPlan
from replicax.cluster_resolver import ClusterSpec, Task, TFConfig

TF_CONFIG = "TF_CONFIG"
JOBS = ("chief", "worker", "ps")  # of a cluster of parameter servers, the leader first

_INSIDE = str(Path(__file__).with_name("_inside.py"))
CALLED = str(Path(__file__).with_name("_called.py"))  # a worker's program that calls a function


@dataclass(frozen=True)
class Program:
    """The program of every worker, with the descriptors of open files that it inherits."""

    target: str
    args: tuple[str, ...] = ()
    is_module: bool = False
    descriptors: tuple[int, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        return (sys.executable, *self.words)

    @property
    def argv_inside(self) -> tuple[str, ...]:
        """The command line of a worker that needs `_inside.py` around the program."""
        return (sys.executable, _INSIDE, *self.words)

    @property
    def words(self) -> tuple[str, ...]:
        """The program and its arguments, as they stand on a command line of `python` or of ours."""
        return (*(("-m",) if self.is_module else ()), self.target, *self.args)

    def check(self, command: str, hint: str = "") -> None:
        """Refuse a missing file here, instead of letting every worker report it."""
        path = Path(self.target)
        found = (path / "__main__.py").is_file() if path.is_dir() else path.exists()
        if not self.is_module and not found:
            raise UsageError(
                f"No file {self.target!r} in {Path.cwd()}. Correct the path, or write `-m` before "
                f"a module.{hint} Options of `replicax {command}` come before the program."
            )


@dataclass(frozen=True)
class Surroundings:
    """The parts of the workers' environments that do not describe the cluster.

    `devices_per_worker` None leaves the number of CPU devices alone; `extra` comes last and wins.
    """

    environ: Mapping[str, str]
    devices_per_worker: int | None = None
    cores: int = 1
    extra: Mapping[str, str] = field(default_factory=dict[str, str])


def plan(
    program: Program,
    spec: ClusterSpec,
    here: Sequence[Task],
    *,
    surroundings: Surroundings,
    restart: int = 0,
) -> list[ProcessPlan]:
    """Plan the tasks of this machine, each with a `TF_CONFIG` that names all.

    `restart` counts earlier starts.
    """
    planned = _plan_servers if "ps" in spec.jobs else _plan_workers
    return planned(program, spec, here, surroundings, restart)


def _plan_workers(
    program: Program,
    spec: ClusterSpec,
    here: Sequence[Task],
    surroundings: Surroundings,
    restart: int,
) -> list[ProcessPlan]:
    """A worker that is alone has nothing to join, and runs the program without us."""
    common = _environment(surroundings, restart)
    variables = {**common, **surroundings.extra}
    gpus, joins = usable_gpus(variables), variables.get("RX_JOIN") != "0"
    shares = own_gpus(len(here), gpus) if joins else shared_gpus(len(here), gpus, variables)
    argv = program.argv if len(spec.tasks) == 1 else program.argv_inside
    return [
        ProcessPlan(
            task,
            argv,
            {
                **common,
                RX_PROCESSES_HERE: str(len(here)),
                TF_CONFIG: TFConfig(spec, task).to_json(),
                **surroundings.extra,
                **share,
            },
            program.descriptors,
        )
        for task, share in zip(here, shares, strict=True)
    ]


def _plan_servers(
    program: Program,
    spec: ClusterSpec,
    here: Sequence[Task],
    surroundings: Surroundings,
    restart: int,
) -> list[ProcessPlan]:
    """Tasks of a cluster of parameter servers do not join one JAX: each computes on its own.

    Where there are GPUs, the chief and the workers share them; servers hold variables in the memory
    of the machine, as one device.
    """
    common, alone = (
        _environment(one, restart)
        for one in (surroundings, replace(surroundings, devices_per_worker=None))
    )
    of_servers = {**alone, JAX_PLATFORMS: "cpu"}
    here = sorted(here, key=lambda task: JOBS.index(task.job))
    environ = surroundings.environ
    tuning = tuning_for_child(cpu_tuning_parts(environ), environ)
    variables = {**common, **surroundings.extra}
    computing = [task for task in here if task.job != "ps"]
    shares = shared_gpus(len(computing), usable_gpus(variables), variables)
    share_of = dict(zip(computing, shares, strict=True))
    plans: list[ProcessPlan] = []
    for task in here:
        env = of_servers if task.job == "ps" else common
        env = env if task.job == "chief" else {**tuning, **env}
        own = {TF_CONFIG: TFConfig(spec, task).to_json(), **surroundings.extra}
        env = {**env, **own, **share_of.get(task, {})}
        plans.append(ProcessPlan(task, program.argv, env, program.descriptors))
    return plans


def plan_joining(
    program: Program, task: Task, *, surroundings: Surroundings, restart: int = 0
) -> list[ProcessPlan]:
    """Plan the single worker that this process becomes in a cluster somebody else started."""
    env = {**_environment(surroundings, restart), **surroundings.extra}
    return [ProcessPlan(task, program.argv_inside, env)]


def parse_variable(text: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Read `NAME=VALUE`, or `NAME`, whose value is taken from the environment here."""
    found = re.fullmatch(r"([A-Za-z_][A-Za-z_0-9]*)(=.*)?", text, re.DOTALL)
    if not found or (found[2] is None and found[1] not in environ):
        raise UsageError(
            f"`--env` must be NAME=VALUE, or the NAME of a variable that is set, got {text!r}. "
            "Write for example `--env XLA_FLAGS=--xla_dump_to=dump`."
        )
    return found[1], environ[found[1]] if found[2] is None else found[2][1:]


def device_variables(devices: int, cores: int) -> dict[str, str]:
    """Variables for CPU devices, and a thread pool with room for all, to be set before JAX starts.

    XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread.
    """
    return {"JAX_NUM_CPU_DEVICES": str(devices), "NPROC": str(max(8, 2 * devices, cores))}


def _environment(surroundings: Surroundings, restart: int) -> dict[str, str]:
    env = {
        **surroundings.environ,
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        RX_RESTART: str(restart),
    }
    if surroundings.devices_per_worker:
        env |= device_variables(surroundings.devices_per_worker, surroundings.cores)
        if not env.get(JAX_PLATFORMS):
            env[JAX_PLATFORMS] = "cpu"
    return env
