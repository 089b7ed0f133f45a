"""The arguments of `replicax doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.launch._plan_arguments import chip_counts
from replicax.launch._profile_arguments import add_steps
from replicax.launch._run_arguments import existing, positive

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
