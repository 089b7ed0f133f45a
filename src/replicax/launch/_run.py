"""`replicax run`: the cluster that its arguments or the environment describe, run to its end."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from replicax._core.env import (
    RX_CLUSTER_SECRET,
    RX_CLUSTER_SECRET_FILE,
    RX_METRICS_FILE,
)
from replicax._core.errors import ReplicaxError, UsageError
from replicax._processes.child import ProcessPlan, as_of_shell
from replicax._processes.output import Sink, Terminal
from replicax._processes.prometheus import TO_STDERR
from replicax._processes.rules import Grace, Outcome, Rules, Signals, tell
from replicax._processes.supervisor import run_attempts, say
from replicax.cluster_resolver import ClusterResolver, ClusterSpec, Task, detect, task_of
from replicax.launch._plan import (
    Program,
    Surroundings,
    parse_variable,
    plan,
    plan_joining,
)
from replicax.launch._ports import check_ports, free_ports
from replicax.launch._ssh import Host, Hosts, Ssh, addresses, parse_hosts, place, this_host

if TYPE_CHECKING:
    from replicax._processes.metrics import Metrics

LOOPBACK = "127.0.0.1"
REVIVALS = 3  # restarts of each process that the others can do without for a while, by default

_BAD_ARGUMENT = 2
_SECRET_BYTES = 32


@dataclass(frozen=True)
class Request:
    """The options of `replicax run`, or of `rx.launch.run` under their Python names.

    `descriptors` are of a function's call and its results, see `_function.py`.
    """

    script: str
    args: Sequence[str] = ()
    is_module: bool = False
    workers: int | None = None
    ps: int | None = None
    devices_per_worker: int | None = None
    hosts: str | None = None
    workers_per_host: int | None = None
    by_hand: bool = False
    ssh: str | None = None
    python: str | None = None
    ray: str | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    min_workers: int | None = None
    pack: bool = False
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    max_restarts: int | None = None
    grace: float | None = None
    prefix: bool = True
    log_dir: str | None = None
    metrics: str | None = None
    timeout: float | None = None
    descriptors: tuple[int, ...] = ()
    is_shell: bool = True

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks of each job, on this machine or on Ray."""
        servers = {"chief": 1, "ps": self.ps} if self.ps else {}
        return {"worker": self.workers or 1, **servers}

    @property
    def program(self) -> Program:
        return Program(self.script, tuple(self.args), self.is_module, self.descriptors)

    def named(self, option: str) -> str:
        return "--" + option.replace("_", "-") if self.is_shell else option


# Plans the workers of this machine, anew for each attempt.
Planner: TypeAlias = "Callable[[int], AbstractContextManager[Sequence[ProcessPlan]]]"


def run_command(options: dict[str, Any], typed: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what was asked for and return the exit code; `typed` is for a hint."""
    sys.stdout.flush()
    sink, signals = Terminal(environ), Signals()
    try:
        env = dict(parse_variable(text, environ) for text in options["env"])
        asked: dict[str, Any] = {**options, "env": env}
        with signals.noted():
            outcome = run_request(Request(**asked), environ, sink, signals, typed=typed)
    except ReplicaxError as error:
        print(f"replicax run: error: {error}", file=sys.stderr)
        return _BAD_ARGUMENT
    return _report(outcome, sink, patient=signals.received.count(signal.SIGINT) < 2)


def run_request(
    request: Request,
    environ: Mapping[str, str],
    sink: Sink,
    signals: Signals,
    *,
    typed: Sequence[str] = (),
) -> Outcome:
    """Run the program in the cluster that was asked for, to its end."""
    request.program.check("run")
    extra = {**request.env, **({RX_METRICS_FILE: TO_STDERR} if request.metrics else {})}
    surroundings = Surroundings(
        environ, request.devices_per_worker, cores=os.cpu_count() or 1, extra=extra
    )
    _check_options(request)
    asked = request.workers or request.hosts or request.ps or request.ray
    resolver = None if asked else detect(environ)
    if resolver and request.log_dir:
        raise UsageError(
            "Cannot use `--log-dir` in a cluster that something else has started. Send its "
            "output to files, for example by `srun --output`."
        )
    if resolver:
        cluster = _joined(request, resolver, surroundings, sink)
    elif request.ray:
        cluster = _on_ray(request, request.ray, surroundings, sink, signals)
    elif request.hosts and request.by_hand:
        cluster = _of_hosts(request, parse_hosts(request.hosts), typed, surroundings, sink)
    elif request.hosts:
        cluster = _by_ssh(request, parse_hosts(request.hosts), surroundings, signals)
        if signals.received:
            return Outcome(signum=signals.received[0])
    else:
        cluster = local_cluster(request.program, request.counts, surroundings)
    grace = Grace() if request.grace is None else Grace(request.grace, request.grace)
    deadline = inf if request.timeout is None else time.monotonic() + request.timeout
    with _published(request.metrics, sink) as metrics:
        return run_attempts(
            cluster,
            max_restarts=request.max_restarts or 0,
            sink=sink,
            signals=signals,
            rules=Rules(
                grace=grace,
                prefix=request.prefix,
                log_dir=request.log_dir,
                captures=not resolver,
                deadline=deadline,
                leader=Task("chief", 0) if request.ps else None,
                revivals=REVIVALS if request.max_restarts is None else request.max_restarts,
                metrics=metrics,
            ),
        )


@contextmanager
def _published(where: str | None, sink: Sink) -> Generator[Metrics | None]:
    """Give metrics at a port or in a file, if they are asked for, in a `with` block."""
    if not where:
        yield None
        return
    from replicax._processes.metrics import Target, published_at  # the HTTP server comes with it

    with published_at(Target.of(where)) as (metrics, target):
        say(sink, f"metrics are in {target.place}; `replicax top {target.argument}` shows them")
        yield metrics


def _check_options(request: Request) -> None:
    """Refuse options that only mean something together with another one, or without it."""
    named, of_ssh = request.named, ["ssh", "python"]
    of_ray = ["cpus_per_worker", "gpus_per_worker", "min_workers", "pack"]
    if not request.ray and any(getattr(request, name) for name in of_ray):
        wrong, other = of_ray, f"without {named('ray')}"
        why = "A Ray cluster divides its machines; give its address."
    elif request.ray and request.hosts:
        wrong, other, why = ["hosts"], "with --ray", "Either starts the workers. Give one."
    elif (request.min_workers or 0) > (request.workers or 1):
        wrong, other = ["min_workers"], f"above the number of workers, {request.workers or 1}"
        why = "It is the least number of them."
    elif not request.hosts:
        wrong, other = ["workers_per_host", "by_hand", *of_ssh], "without --hosts"
        why = "It is about other machines, which --hosts names."
    elif request.workers and request.workers_per_host:
        wrong, other = ["workers"], "with --workers-per-host"
        why = "Either counts all workers. Give one."
    elif request.by_hand:
        wrong, other = ["ps", *of_ssh], "with --by-hand"
        why = "With it each machine starts its own workers, by its own Python."
    else:
        return
    if given := [named(name) for name in wrong if getattr(request, name)]:
        read = "`replicax run --help`" if request.is_shell else "docs/clusters.md"
        raise UsageError(f"Cannot use {', '.join(given)} {other}. {why} See {read}.")


def local_cluster(
    program: Program, counts: Mapping[str, int], surroundings: Surroundings
) -> Planner:
    """Tasks on this machine, `counts` of each job, with new ports each time and a secret."""
    surroundings = _with_secret(surroundings)

    @contextmanager
    def cluster(restart: int) -> Generator[list[ProcessPlan]]:
        with free_ports(sum(counts.values())) as ports:
            numbers = iter(ports)
            spec = ClusterSpec(
                {
                    job: [f"{LOOPBACK}:{next(numbers)}" for _ in range(count)]
                    for job, count in counts.items()
                }
            )
            yield plan(program, spec, spec.tasks, surroundings=surroundings, restart=restart)

    return cluster


def _with_secret(surroundings: Surroundings) -> Surroundings:
    """Give the processes a secret that nobody else knows, unless they already have one."""
    environ = {**surroundings.environ, **surroundings.extra}
    if environ.get(RX_CLUSTER_SECRET) or environ.get(RX_CLUSTER_SECRET_FILE):
        return surroundings
    own = {RX_CLUSTER_SECRET: secrets.token_hex(_SECRET_BYTES)}
    return replace(surroundings, environ={**surroundings.environ, **own})


def _by_ssh(
    request: Request, hosts: Sequence[Host], surroundings: Surroundings, signals: Signals
) -> Planner:
    """The tasks of all hosts, which `ssh` starts there, with a secret of their own."""
    surroundings = _telling_secret(surroundings)
    placed = place(hosts, _count(request, hosts), request.ps)
    ssh = Ssh.of(request.ssh, request.python, surroundings.environ)
    planner = Hosts(hosts, placed, request.program, surroundings, ssh)
    planner.check(signals)
    return planner.cluster


def _on_ray(
    request: Request, address: str, surroundings: Surroundings, sink: Sink, signals: Signals
) -> Planner:
    """Tasks that a Ray cluster places, with a secret of their own."""
    from replicax.launch._ray import Bundles, RayWorkers

    cpus = 1 if request.cpus_per_worker is None else request.cpus_per_worker
    return RayWorkers(
        address,
        _in_this_folder(request.program),
        request.counts,
        Bundles(cpus, request.gpus_per_worker or 0, request.min_workers, request.pack),
        _telling_secret(surroundings),
        sink=sink,
        signals=signals,
        patience=request.timeout,
    ).cluster


def _in_this_folder(program: Program) -> Program:
    """The program by its path in the working folder, which travels to other machines."""
    if program.is_module or program.descriptors:
        return program
    path = Path(os.path.relpath(program.target))
    if ".." in path.parts:
        raise UsageError(
            f"Cannot send {program.target!r} to Ray because it is outside {Path.cwd()}, the folder "
            "that Ray copies to its machines. Run the command in the program's folder."
        )
    return replace(program, target=str(path))


def _telling_secret(surroundings: Surroundings) -> Surroundings:
    """Give processes on other machines a secret that nobody else knows, or the user's."""
    secret = _given_secret(surroundings) or secrets.token_hex(_SECRET_BYTES)
    return replace(surroundings, extra={**surroundings.extra, RX_CLUSTER_SECRET: secret})


def _given_secret(surroundings: Surroundings) -> str:
    """The secret that the user has set, as a text, because other machines do not have its file."""
    from replicax._net import given_secret  # NumPy comes with it

    given = given_secret({**surroundings.environ, **surroundings.extra})
    try:
        return given.value.decode() if given else ""
    except UnicodeDecodeError:
        raise UsageError(
            f"The file of {RX_CLUSTER_SECRET_FILE} must be UTF-8 text. Write a new secret there, "
            'by `python -c "import secrets; print(secrets.token_hex())"`.'
        ) from None


def _count(request: Request, hosts: Sequence[Host]) -> int:
    return request.workers or len(hosts) * (request.workers_per_host or 1)


def _of_hosts(
    request: Request,
    hosts: Sequence[Host],
    typed: Sequence[str],
    surroundings: Surroundings,
    sink: Sink,
) -> Planner:
    """The workers of this machine in a cluster of several."""
    listening = addresses(hosts, _count(request, hosts))
    own = this_host(hosts)
    each = len(listening) // len(hosts)
    here = [Task("worker", index) for index in range(own * each, (own + 1) * each)]
    others = ", ".join(host.name for i, host in enumerate(hosts) if i != own)
    if others:
        command = shlex.join(["replicax", *_without_values(typed, len(request.args))])
        say(sink, f"this is {hosts[own].name}; on {others} type, in the same folder: {command}")

    @contextmanager
    def cluster(restart: int) -> Generator[list[ProcessPlan]]:
        check_ports([hosts[own].port + i for i in range(each)])
        spec = ClusterSpec({"worker": listening})
        yield plan(request.program, spec, here, surroundings=surroundings, restart=restart)

    return cluster


def _without_values(typed: Sequence[str], of_program: int) -> list[str]:
    """The typed command without the values of `--env`: these may be secret, and output is kept."""
    own = len(typed) - of_program
    shown: list[str] = []
    for before, word in zip(["", *typed], typed[:own], strict=False):
        if before == "--env":
            shown.append(word.partition("=")[0])
        elif word.startswith("--env="):
            shown.append("=".join(word.split("=")[:2]))
        else:
            shown.append(word)
    return [*shown, *typed[own:]]


def _joined(
    request: Request, resolver: ClusterResolver, surroundings: Surroundings, sink: Sink
) -> Planner:
    """This process' one worker in a cluster that somebody else started."""
    task = task_of(resolver)
    source = type(resolver).__name__.removesuffix("ClusterResolver")
    say(sink, f"joining the cluster that {source} describes, as {task}")

    @contextmanager
    def cluster(restart: int) -> Generator[list[ProcessPlan]]:
        yield plan_joining(request.program, task, surroundings=surroundings, restart=restart)

    return cluster


def _report(outcome: Outcome, sink: Terminal, *, patient: bool) -> int:
    """Report how the run ended, if that needs a word, and return the exit code."""
    if outcome.failure:
        say(sink, tell(outcome.failure))
    elif outcome.signum == signal.SIGINT:
        say(sink, "interrupted")
    elif outcome.signum:
        say(sink, f"ended by {signal.Signals(outcome.signum).name}")
    if patient:
        sink.flush()
    else:
        sink.push()
    return exit_code(outcome)


def exit_code(outcome: Outcome) -> int:
    """The culprit's exit code as a shell counts it, else the signal's, else 0."""
    if outcome.failure:
        return as_of_shell(outcome.failure.returncode)
    return 128 + outcome.signum if outcome.signum else 0
