"""The arguments of `replicax doctor` and `replicax verify`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from replicax.launch._compare_arguments import add_replicas, seed
from replicax.launch._plan_arguments import chip_counts
from replicax.launch._profile_arguments import add_steps
from replicax.launch._run_arguments import existing, positive, strategies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DOCTOR = """\
Look at what is installed: versions, devices, drivers, ports, memory that processes share, Ray,
libtpu; say what is wrong, and the command that fixes it. With a script, also train it for some
steps on several numbers of replicas: how it scales, where efficiency is lost, who is slow, and what
to do first."""

_DOCTOR_EXAMPLES = """\
examples:
  replicax doctor
  replicax doctor train.py
  replicax doctor train.py --replicas 1,2,4 --json doctor.json -- --epochs 1
  replicax doctor train.py --workers 2

exit code: 0 if nothing is wrong with the installation; 1 if something is; 2 for a bad argument or a
script that makes too few steps."""


def add_doctor(commands: Any) -> None:
    """Add the command `doctor`."""
    parser = commands.add_parser(
        "doctor",
        help="check the installation; say how a script scales, and what makes it slow",
        usage="replicax doctor [SCRIPT] [options] [-- args of the script ...]",
        description=_DOCTOR,
        epilog=_DOCTOR_EXAMPLES,
    )
    parser.add_argument(
        "script", nargs="?", type=existing, metavar="SCRIPT", help="a Python file that trains"
    )
    parser.add_argument(
        "--replicas",
        type=chip_counts,
        metavar="N,...",
        help="numbers of devices to train on; without an accelerator the CPU is made to look like "
        "so many (default: 1,2, or 1 on a machine with one accelerator)",
    )
    parser.add_argument(
        "--workers",
        type=positive,
        metavar="N",
        help="train on N workers, too, which are processes of this machine with one device each, "
        "and compare them (default: none)",
    )
    add_steps(parser)
    parser.add_argument("--json", metavar="FILE", help="write every number")


def doctor_request(request: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The options of the child, from those of `replicax doctor` and of the script."""
    replicas = sorted(set(request["replicas"] or ())) or None
    return {**request, "replicas": replicas, "args": list(arguments)}


_VERIFY = """\
Run a training script on one device, and again under each strategy, from the same seed, and compare
step by step: the rows of each batch, loss and metrics, every gradient and weight, statistics and
random states. Names the first step and variable that differ, how much, and the likely cause.

SCRIPT is not changed: whichever strategy it makes, the chosen one takes its place; without any, it
runs in the scope of the chosen one."""

_VERIFY_EXAMPLES = """\
examples:
  replicax verify train.py
  replicax verify train.py --replicas 4 --strategies mirrored,central_storage,zero3
  replicax verify train.py --steps 20 --json verification.json -- --epochs 1

exit code: 0 if every strategy trains as one device does; 1 if one does not; 2 for a bad argument,
or a script that fails or does not train."""

STRATEGIES = ("mirrored", "central_storage", "zero1", "zero3", "model_parallel")


def add_verify(commands: Any) -> None:
    """Add the command `verify`."""
    parser = commands.add_parser(
        "verify",
        help="compare a script's training under each strategy with that on one device",
        usage="replicax verify SCRIPT [options] [-- args of the script ...]",
        description=_VERIFY,
        epilog=_VERIFY_EXAMPLES,
    )
    parser.add_argument("target", type=existing, metavar="SCRIPT", help="a training script")
    add_replicas(parser)
    parser.add_argument(
        "--strategies",
        type=partial(strategies, known=STRATEGIES),
        default=STRATEGIES[:2],
        metavar="NAME,...",
        help=f"any of {','.join(STRATEGIES)} (default: mirrored,central_storage)",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=8,
        metavar="K",
        help="training steps to compare; as many as reach the end of an epoch include its last, "
        "uneven batch (default: %(default)s)",
    )
    parser.add_argument(
        "--seed",
        type=seed,
        default=1,
        metavar="S",
        help="of the random numbers of Python, NumPy and Keras (default: %(default)s)",
    )
    parser.add_argument(
        "--no-repeat",
        dest="repeat",
        action="store_false",
        help="do not run twice on one device, which tells whether the script is deterministic",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything that was found")
