"""`--hosts a,b`: where each worker listens, and workers that an `ssh` of this machine starts there.

So output, ends and restarts are those of any worker. `_remote.py` is what runs over there.
"""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from replicax._core.errors import UsageError
from replicax._processes.child import RX_RESTART, ProcessPlan
from replicax.cluster_resolver import Task
from replicax.launch._plan import JOBS, Program, Surroundings
from replicax.launch._remote import Order, digest_of

if TYPE_CHECKING:
    from replicax._processes.rules import Signals


FIRST_PORT = 12345
_LAST_PORT = 2**16 - 1

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/@-][^\s:\[\]/@]*)(?::([0-9]{1,5}))?")


class Host(NamedTuple):
    """A machine and the port of its first worker; its other workers have the ports after that."""

    name: str
    port: int


def parse_hosts(text: str) -> list[Host]:
    """Read hosts separated by commas, each with or without its first port."""
    hosts: list[Host] = []
    for part in text.split(","):
        found = _HOST.fullmatch(part.strip())
        port = int(found[2] or FIRST_PORT) if found else 0
        if not found or not 0 < port <= _LAST_PORT:
            raise UsageError(
                f"`--hosts` must list hosts, with or without a port each, got {part!r} in "
                f"{text!r}. Write `a,b`, `a:9000,b:9000` or, for IPv6, `[fe80::1]`."
            )
        hosts.append(Host(found[1], port))
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        raise UsageError(
            f"`--hosts` must name each host once, got {text!r}. For several workers a host, pass "
            "`--workers-per-host`."
        )
    return hosts


def addresses(hosts: Sequence[Host], workers: int) -> list[str]:
    """The address of every worker, host after host, the same number on each."""
    here, rest = divmod(workers, len(hosts))
    if rest:
        raise UsageError(
            f"Cannot divide {workers} workers evenly among {len(hosts)} hosts. Use "
            f"{len(hosts) * (here + 1)} workers, or another number of hosts."
        )
    return [address(host, i) for host in hosts for i in range(here)]


def address(host: Host, number: int) -> str:
    """The address of a process of a host, counted from 0."""
    port = host.port + number
    if port > _LAST_PORT:
        raise UsageError(
            f"Process {number + 1} of {host.name} would get port {port}, above {_LAST_PORT}: the "
            f"first port is {host.port}. Use a lower first port: `{host.name}:23456`."
        )
    return f"{host.name}:{port}"


def this_host(hosts: Sequence[Host]) -> int:
    """The number of the one host that is this machine, by its name, else by its addresses."""
    names = _own_names()
    named = [i for i, host in enumerate(hosts) if host.name.lower() in names]
    own = named or [i for i, host in enumerate(hosts) if _is_own(host.name)]
    if len(own) != 1:
        several = ", ".join(hosts[i].name for i in own)
        raise UsageError(
            f"Of the hosts {', '.join(host.name for host in hosts)}, "
            f"{f'{several} are' if own else 'none is'} this machine, {' or '.join(names)}. "
            "With `--by-hand` name it once, as the other machines reach it, and run the same "
            "command on each; without it, all workers are started from here by ssh."
        )
    return own[0]


def is_here(host: Host) -> bool:
    return host.name.lower() in _own_names() or _is_own(host.name)


def _own_names() -> list[str]:
    name = socket.gethostname().lower()
    return list(dict.fromkeys([name, name.partition(".")[0]]))


def _is_own(host: str) -> bool:
    """Whether the host's address belongs to this machine: only then can a socket bind to it."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    return any(_can_bind(family, address) for family, _, _, _, address in found)


def _can_bind(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(address)
        except OSError:
            return False
    return True


RX_SSH = "RX_SSH"

# Before it, so that options in `--ssh` come first: ssh takes the first of two.
_OPTIONS = {
    "BatchMode": "yes",  # keys only: nobody is there to type a password for each worker
    "ConnectTimeout": "10",
    "ServerAliveInterval": "20",
    "ServerAliveCountMax": "3",
    "ControlMaster": "no",  # a master in the background would hold the output open
}
BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from replicax.launch._remote import main; sys.exit(main())"
)
ROOT = str(Path(__file__).parents[2])  # for those who have not installed it, the same path there
_SECONDS_TO_ANSWER = 60.0


class Placed(NamedTuple):
    """A task, the number of its host, and where it listens."""

    task: Task
    host: int
    address: str


@dataclass(frozen=True)
class Ssh:
    """How a host is reached, and with which Python its workers run.

    Options are added to an `ssh` only: another command gets the host and what to run there.
    """

    command: tuple[str, ...] = ("ssh",)
    python: str = sys.executable

    @classmethod
    def of(cls, command: str | None, python: str | None, environ: Mapping[str, str]) -> Ssh:
        """As the options say, else `RX_SSH`, else `ssh` and this Python."""
        text, words = command or environ.get(RX_SSH) or "ssh", list[str]()
        with suppress(ValueError):  # a quote or a backslash that nothing follows
            words = shlex.split(text)
        if not words:
            raise UsageError(
                f"`{'--ssh' if command else RX_SSH}` must be a command with closed quotes, got "
                f"{text!r}. Write for example 'ssh -p 2222'."
            )
        return cls(tuple(words), python or sys.executable)

    def to(self, host: Host) -> tuple[str, ...]:
        """The command line that starts the far end there; without ssh on this machine."""
        far_end = (self.python, "-c", BOOT, ROOT)
        if is_here(host):
            return far_end
        is_ssh = Path(self.command[0]).name == "ssh"
        options = [f"-o{name}={value}" for name, value in _OPTIONS.items()] if is_ssh else []
        return (*self.command, *options, host.name.strip("[]"), shlex.join(far_end))


def place(hosts: Sequence[Host], workers: int, ps: int | None) -> list[Placed]:
    """Which task is where: workers host after host; with parameter servers all in turn.

    Example:
        >>> [f"{one.task} {one.address}" for one in place(parse_hosts("a,b"), 2, ps=1)]
        ['chief 0 a:12345', 'worker 0 a:12346', 'worker 1 b:12345', 'ps 0 a:12347']
    """
    if not ps:
        each = workers // len(hosts)
        return [
            Placed(Task("worker", i), i // each, listening)
            for i, listening in enumerate(addresses(hosts, workers))
        ]
    counts = dict(zip(JOBS, (1, workers, ps), strict=True))
    used, placed = [0] * len(hosts), list[Placed]()
    for job, count in counts.items():
        for index in range(count):
            at = index % len(hosts)
            placed.append(Placed(Task(job, index), at, address(hosts[at], used[at])))
            used[at] += 1
    return placed


def _folder(environ: Mapping[str, str]) -> str:
    """The working folder, by the name that the shell has for it: links differ between machines."""
    named = environ.get("PWD", "")
    with suppress(OSError):
        if named and Path(named).samefile(Path.cwd()):
            return named
    return str(Path.cwd())


class Hosts:
    """The tasks of all hosts, planned for each attempt."""

    def __init__(
        self,
        hosts: Sequence[Host],
        placed: Sequence[Placed],
        program: Program,
        surroundings: Surroundings,
        ssh: Ssh,
    ) -> None:
        self._hosts = hosts
        self._placed = placed
        self._environ = surroundings.environ
        self._commands = [ssh.to(host) for host in hosts]
        jobs: dict[str, list[str]] = {}
        for one in placed:
            jobs.setdefault(one.task.job, []).append(one.address)
        common = Order(
            _folder(surroundings.environ),
            program,
            digest_of(program),
            jobs,
            (),
            surroundings.devices_per_worker,
            surroundings.extra,
        )
        self._orders = [replace(common, here=self._tasks_at(at)) for at in range(len(hosts))]

    @contextmanager
    def cluster(self, restart: int) -> Generator[list[ProcessPlan]]:
        """Plan all tasks; the ports are those of the hosts, the same each time."""
        plans: list[ProcessPlan] = []
        for task, at, _ in self._placed:
            here = self._orders[at].here
            order = replace(
                self._orders[at], restart=restart, place=here.index((task.job, task.index))
            )
            plans.append(
                ProcessPlan(
                    task,
                    self._commands[at],
                    {**self._environ, RX_RESTART: str(restart)},
                    host=self._hosts[at].name,
                    order=order,
                )
            )
        yield plans

    def check(self, signals: Signals) -> None:
        """Ask all hosts at the same time whether they could run the program.

        It ends early at a signal to us.
        """
        wrong: list[str] = []
        with ExitStack() as cleanup:
            asked = [_Asked(*one) for one in zip(self._commands, self._orders, strict=True)]
            for one in asked:
                cleanup.callback(one.end)
            for host, one in zip(self._hosts, asked, strict=True):
                if complaint := one.complaint(signals):
                    wrong.append(f"{host.name}: {complaint}")
        if wrong:
            raise UsageError(
                f"Cannot start workers by ssh: {'; '.join(wrong)}. Nothing was started. Each host "
                "needs a login without a password (try `ssh HOST true`), and this Python (else "
                "pass --python) and the program at the same path. See docs/clusters.md."
            )

    def _tasks_at(self, at: int) -> list[tuple[str, int]]:
        return [(task.job, task.index) for task, host, _ in self._placed if host == at]


class _Asked:
    """A host that was asked whether it could run the program."""

    def __init__(self, command: Sequence[str], order: Order) -> None:
        self._deadline = time.monotonic() + _SECONDS_TO_ANSWER
        self._error, self._said = "", b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us
            )
        except OSError as error:
            self._process, self._error = None, f"{command[0]}: {error.strerror}"
            return
        # A thread, because a long order fills the pipe of a host that does not read.
        self._thread = Thread(target=self._ask, args=(self._process, order.line()), daemon=True)
        self._thread.start()

    def _ask(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        self._said = process.communicate(line)[1]

    def complaint(self, signals: Signals) -> str:
        """Why it cannot run the program; empty if it can, or if a signal has come to us."""
        while self._process and not signals.received:
            self._thread.join(0.1)
            if not self._thread.is_alive():
                if not self._process.returncode:
                    return ""
                lines = self._said.decode(errors="replace").strip().splitlines()
                last = lines[-1] if lines else f"exit code {self._process.returncode}"
                return last.removeprefix("replicax run: error: ")
            if time.monotonic() >= self._deadline:
                return f"no answer in {_SECONDS_TO_ANSWER:.0f} seconds"
        return self._error

    def end(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
