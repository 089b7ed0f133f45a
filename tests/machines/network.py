"""Machines in the kernel of this one: each has namespaces of its own, and a cable to the others.

A machine has its own network, host name, processes, `/etc/hosts`, `/dev/shm`, home folder and time
since boot; it has the file system of this one, but for the folders that it is told to hide. Only
what the kernel shares stays the same: the wall clock, the number of cores, the user.

Nothing of it has a name outside. The end of this process, by whatever signal, closes the standard
input of the first process of each machine, and with that one the kernel ends all of the machine.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from .wire import Weather
from helpers import wait_until
from processes import running_with

TOOLS = ("ip", "mount", "nsenter", "sh", "unshare")
NAMESPACES = ("--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--mount-proc")

# The first process. Folders to hide come as its arguments.
FIRST = """
set -e
name=$1 folder=$2; shift 2
hostname "$name"
mount --make-rprivate /
mount --bind "$folder/hosts" /etc/hosts
mount --bind "$folder/boot_id-$name" /proc/sys/kernel/random/boot_id
for hidden in /dev/shm "$folder/home" "$@"; do mount -t tmpfs tmpfs "$hidden"; done
ip link set lo up
echo ready
read -r end
"""


def why_not():
    """Why no machines can be made here; empty if they can."""
    if sys.platform != "linux" or os.geteuid():
        return "needs Linux and its root"
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        return f"needs {', '.join(missing)}"
    if not os.path.exists("/dev/net/tun"):
        return "needs /dev/net/tun"
    trial = ["sh", "-c", "ip link set lo up && mount -t tmpfs tmpfs /mnt"]
    command = ["unshare", *NAMESPACES, "--time", *trial]
    tried = subprocess.run(command, capture_output=True, text=True)
    return f"namespaces are not permitted: {tried.stderr.strip()}" if tried.returncode else ""


def interfaces():
    """The interfaces of this machine, and the networks that have a name."""
    commands = (["ip", "-brief", "link"], ["ip", "netns", "list"])
    return [subprocess.run(each, capture_output=True, text=True).stdout for each in commands]


class Network:
    """Machines of the names `names`, joined by a wire; see `machines`."""

    def __init__(self, folder, names, environment):
        self.folder = folder
        self.mark = f"RX_MACHINES={uuid.uuid4().hex}"
        self.addresses = {name: f"10.77.0.{1 + i}" for i, name in enumerate(names)}
        self.weather = Weather()
        self._environment = [f"{name}={value}" for name, value in environment.items()]
        self._first = {}
        self._wire = None

    def start(self, cleanup, hidden):
        """Start everything; `cleanup` ends it."""
        (self.folder / "home").mkdir()
        hosts = [f"{address} {name}" for name, address in self.addresses.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *hosts, ""]))
        for number, name in enumerate(self.addresses):
            self._first[name] = self._machine(cleanup, name, 1 + number, hidden)
        ends = [f"{name}={at}={self._first[name]}" for name, at in self.addresses.items()]
        wire = str(Path(__file__).with_name("wire.py"))
        self._wire = _started(cleanup, [sys.executable, "-S", wire, *ends])
        words = {name: self.inside(name) for name in self.addresses}
        (self.folder / "machines.json").write_text(json.dumps(words))
        far = Path(__file__).with_name("far.py")
        program = shlex.join([sys.executable, "-S", str(far), str(self.folder)])
        self.ssh.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        self.ssh.chmod(0o755)

    @property
    def ssh(self):
        """A program that does what `ssh` does, for these machines."""
        return self.folder / "ssh"

    def inside(self, name):
        """The words to write before a command for it to run in a machine."""
        own = ["env", "-i", self.mark, *self._environment, f"HOME={self.folder}/home"]
        return ["nsenter", "--target", str(self._first[name]), "--all", *own]

    def popen(self, name, *command, folder, **options):
        """Start a command in a machine, as somebody does who sits there."""
        text = f"cd {shlex.quote(str(folder))} && exec {shlex.join(map(str, command))}"
        return subprocess.Popen(
            [*self.inside(name), "sh", "-c", text],
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **options},
        )

    def path(self, name, path):
        """The path by which this process finds a file of a machine, hidden ones, too."""
        return Path(f"/proc/{self._first[name]}/root{path}")

    def change(self, **changes):
        """Change the weather: see `wire.Weather`."""
        self.weather = replace(self.weather, **changes)
        self._wire.stdin.write(json.dumps(asdict(self.weather)) + "\n")
        self._wire.stdin.flush()
        assert self._wire.stdout.readline() == "done\n"

    def vanish(self, name):
        """Let a machine be heard no more, by its cable or by `ssh`: nobody is told."""
        self.change(down=[*self.weather.down, name])
        for path in self.folder.glob(f"ssh-{name}-*"):
            with suppress(ProcessLookupError):
                os.kill(int(path.name.rpartition("-")[2]), signal.SIGSTOP)

    def processes(self):
        """Those of the machines that are still there."""
        return running_with(self.mark)

    def _machine(self, cleanup, name, number, hidden):
        (self.folder / f"boot_id-{name}").write_text(f"{uuid.uuid4()}\n")
        seconds = str(100_000 * number)  # since it was started: another number for each
        clock = ["--time", "--monotonic", seconds, "--boottime", seconds]
        first = ["sh", "-c", FIRST, "sh", name, str(self.folder), *map(str, hidden)]
        process = _started(cleanup, ["unshare", *NAMESPACES, "--kill-child", *clock, *first])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        return int(children.split()[0])


def _started(cleanup, command):
    """Start what says `ready`, and ends with its standard input."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    cleanup.callback(_end, process)
    said = process.stdout.readline()
    assert said == "ready\n", (command, said)
    return process


def _end(process):
    process.stdin.close()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


@contextmanager
def machines(folder, names, environment, hidden=()):
    """Machines that end with the block, with all that runs in them."""
    network = Network(folder, names, environment)
    with ExitStack() as cleanup:
        network.start(cleanup, hidden)
        yield network
    wait_until(lambda: not network.processes())
