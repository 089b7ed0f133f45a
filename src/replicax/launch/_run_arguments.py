"""The arguments of `replicax run`; `_run.py`, which acts on them, is not loaded for help."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from replicax._core.errors import did_you_mean

# argparse has no public names for the results of add_subparsers() and add_argument_group().
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # pyright: ignore[reportPrivateUsage]
Options: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"  # pyright: ignore[reportPrivateUsage]

_RUN = """\
Start a program as several workers, which form a cluster: of this machine, of several machines
with --hosts, of a Ray cluster with --ray, or the one that the environment describes (TF_CONFIG,
Slurm, MPI, Kubernetes, SageMaker), which it joins as one worker if --workers is not given. Every
worker finds the cluster in TF_CONFIG, and joins it when it imports JAX (RX_JOIN=0: it does not).
The first that fails ends all; Ctrl-C and SIGTERM do, too.

With --ps it starts a chief, workers and parameter servers, for rx.ParameterServerStrategy, all of
which run the program. A worker or parameter server that fails is started again by itself, and
when the chief ends, all end."""

_RUN_EXAMPLES = """\
examples:
  replicax run --workers 2 train.py --epochs 5
  replicax run --workers 2 --devices-per-worker 4 -m my_package.train
  replicax run --workers 4 --max-restarts 3 train.py
  replicax run --hosts node1,node2 train.py        (by ssh)
  replicax run --ray auto --workers 4 --gpus-per-worker 1 train.py
  replicax run --workers 2 --ps 1 train.py         (and a chief)
  srun --ntasks 8 replicax run train.py

exit code: 0 if every worker ends with 0; else the exit code of the worker that failed, or 128 plus
the number of the signal that ended it; 42 if a worker was preempted and no restart is left; 130
after Ctrl-C, 143 after SIGTERM; 2 for a bad argument."""


def add_run(commands: Commands) -> None:
    parser = commands.add_parser(
        "run",
        help="start a program as several workers, or join a cluster as one",
        usage="replicax run [options] [-m] script [args ...]",
        description=_RUN,
        epilog=_RUN_EXAMPLES,
    )
    _add_cluster(parser.add_argument_group("the cluster"))
    _add_hosts(parser.add_argument_group("several machines, with --hosts"))
    _add_ray(parser.add_argument_group("a Ray cluster, with --ray"))
    _add_behaviour(parser.add_argument_group("how it is run"))
    add_program(parser)


_TOP = """\
Show the workers of a run, while it goes on: where they are, which step they are in, how many
examples they train on in a second, how long they wait for others, and how often they were started
again. Start the run by `replicax run --metrics PORT_OR_FILE`."""

_TOP_EXAMPLES = """\
examples:
  replicax run --workers 2 --metrics 9100 train.py
  replicax top 9100
  replicax top node1:9100 --once
  replicax top train.prom

exit code: 0; 1 if nothing is there; 2 for a bad argument."""


def add_top(commands: Commands) -> None:
    parser = commands.add_parser(
        "top",
        help="show the workers of a run, live",
        usage="replicax top [PORT|HOST:PORT|FILE] [options]",
        description=_TOP,
        epilog=_TOP_EXAMPLES,
    )
    parser.add_argument(
        "source",
        nargs="?",
        default="9100",
        metavar="PORT|HOST:PORT|FILE",
        help="what `replicax run` was given as --metrics (default: 9100)",
    )
    parser.add_argument("--once", action="store_true", help="print it once, also for pipes")


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the program and its own arguments, which come last."""
    program = parser.add_argument_group("the program; options stand before it")
    program.add_argument(
        "-m", dest="is_module", action="store_true", help="script is the name of a module"
    )
    program.add_argument("script", help="a Python file, or with -m a module")
    arguments = program.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    arguments.required = False  # or argparse asks for it where only the script is missing


def add_number(
    parser: Options, name: str, metavar: str, text: str, *, default: int | None = None
) -> None:
    """Add an option whose value is a whole number of at least 1; the help ends with its default."""
    shown = f"{text} (default: {default})".lstrip() if default else text
    parser.add_argument(name, type=positive, default=default, metavar=metavar, help=shown)


def _add_cluster(cluster: Options) -> None:
    add_number(
        cluster,
        "--workers",
        "N",
        "how many workers there are in all (default: one on each of --hosts, or one)",
    )
    add_number(
        cluster,
        "--ps",
        "M",
        "start M parameter servers, too, and a chief, which gives work to the workers",
    )
    add_number(
        cluster,
        "--devices-per-worker",
        "R",
        "make the CPU look like R devices in each worker, which uses no GPU then",
    )
    cluster.add_argument(
        "--hosts",
        metavar="A,B",
        help="the machines, each with the first port of its workers or without: a:23456,b; ssh "
        "starts the workers there, in the same folder",
    )
    cluster.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for the environment of every worker, without VALUE the one of this "
        "shell; can be repeated. Hosts that ssh reaches get no others",
    )


def _add_hosts(hosts: Options) -> None:
    add_number(
        hosts, "--workers-per-host", "N", "how many workers each host has, instead of --workers"
    )
    hosts.add_argument(
        "--python", metavar="PATH", help="the Python on the hosts (default: the path of this one)"
    )
    hosts.add_argument(
        "--ssh",
        metavar="COMMAND",
        help="the program that reaches a host, such as 'ssh -p 2222'; one other than ssh gets the "
        "host and a command line (default: RX_SSH in the environment, or ssh)",
    )
    hosts.add_argument(
        "--by-hand",
        action="store_true",
        help="no ssh: start the workers of this host, and print the commands for the others",
    )


def _add_ray(ray: Options) -> None:
    ray.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="the address of a Ray cluster that runs, or auto: Ray places the workers, in a copy "
        "of this folder",
    )
    add_number(
        ray, "--cpus-per-worker", "C", "how many CPU cores each worker asks Ray for (default: 1)"
    )
    add_number(
        ray,
        "--gpus-per-worker",
        "G",
        "how many GPUs each worker asks Ray for (default: none; it computes on the CPU)",
    )
    add_number(
        ray,
        "--min-workers",
        "K",
        "start with fewer workers, K at least, if Ray has no room for N; after a failure (--max-"
        "restarts), too (default: N)",
    )
    ray.add_argument(
        "--pack",
        action="store_true",
        help="place workers on as few machines as possible (default: on as many)",
    )


def _add_behaviour(behaviour: Options) -> None:
    behaviour.add_argument(
        "--max-restarts",
        type=not_negative,
        metavar="K",
        help="after a failure, or a preemption (exit code 42), start all workers again, at most "
        "K times; RX_RESTART in their environment counts (default: 0). With --ps this is about "
        "the chief; each of the others is started again by itself, at most K times (default: 3)",
    )
    behaviour.add_argument(
        "--grace",
        type=_seconds,
        metavar="SECONDS",
        help="how long workers have to end before they are killed "
        "(default: 5 after a failure or Ctrl-C, 30 after SIGTERM, for a checkpoint)",
    )
    behaviour.add_argument(
        "--log-dir",
        metavar="DIR",
        help="also write the whole output of each worker to a file, such as DIR/worker-0.log",
    )
    behaviour.add_argument(
        "--metrics",
        metavar="PORT|FILE",
        help="give Prometheus, and `replicax top`, the metrics of the workers that this command "
        "starts: at http://127.0.0.1:PORT/metrics, or HOST:PORT; or in a file such as train.prom",
    )
    behaviour.add_argument(
        "--no-prefix",
        dest="prefix",
        action="store_false",
        help="print the workers' lines as they are, without [worker 0] in front",
    )


def matching(pattern: str, meaning: str, read: Callable[[str], Any] = str) -> Callable[[str], Any]:
    """A reader of arguments that match a pattern; the error of others says what they must be."""

    def matched(text: str) -> Any:
        if not re.fullmatch(pattern, text, re.ASCII):
            raise argparse.ArgumentTypeError(f"must {meaning}, got {text!r}")
        return read(text)

    return matched


positive = matching("0*[1-9][0-9]*", "be a whole number of at least 1", int)
not_negative = matching("[0-9]+", "be a whole number, 0 or more", int)
_seconds = matching(r"[0-9]+(\.[0-9]+)?", "be seconds such as 10 or 0.5", float)


def positives(text: str) -> tuple[int, ...]:
    """Read whole numbers of at least 1, separated by commas."""
    return tuple(positive(count.strip()) for count in text.split(","))


def existing(path: str) -> str:
    """Read the path of a file or folder that is there."""
    if not os.path.exists(path):
        folder, name = os.path.split(path)
        beside = os.listdir(folder or ".") if os.path.isdir(folder or ".") else ()
        raise argparse.ArgumentTypeError(f"no such file: {path!r}.{did_you_mean(name, beside)}")
    return path


def file(path: str) -> str:
    """Read the path of a file that is there."""
    if os.path.isdir(path):
        raise argparse.ArgumentTypeError(f"{path!r} is a folder. Pass a file in it.")
    return existing(path)


def strategies(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Read names of strategies separated by commas; M in a known name is a number from 1."""
    names = tuple(name.strip() for name in text.split(","))
    listed = ", ".join(known) + (" with a number M" if any(":M" in one for one in known) else "")
    pattern = "|".join(known).replace(":M", ":[1-9][0-9]*")
    wrong = [name for name in names if not re.fullmatch(pattern, name)]
    if wrong:
        meant = did_you_mean(wrong[0], known)
        raise argparse.ArgumentTypeError(f"no strategy {wrong[0]!r}.{meant} Use any of {listed}.")
    return names
