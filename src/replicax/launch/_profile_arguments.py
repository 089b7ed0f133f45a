"""The arguments of `replicax profile`, and the environment of the child process that profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax._core.env import without_idle_libtpu
from replicax.cluster_resolver._tpu_slice import chips_on_bus
from replicax.launch._plan import device_variables
from replicax.launch._run_arguments import existing, positive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PROFILE = """\
Run a training script for some steps, and say on one page what a step takes: how long it waits for
data, copies, computes, communicates, compiles and is in Python; bytes of its collective operations;
memory; what each device did. A trace for TensorBoard is written beside it."""

_PROFILE_EXAMPLES = """\
examples:
  replicax profile train.py
  replicax profile train.py --replicas 4 --steps 50 --json profile.json
  replicax profile train.py --output logs -- --epochs 1
  tensorboard --logdir profile     # with: pip install xprof

exit code: 0 if there is a profile; 2 for a bad argument or a script that makes no such steps; else
that of a script that fails."""


_SPARE_DEVICES = 8


def add_profile(commands: Any) -> None:
    """Add the command `profile`."""
    parser = commands.add_parser(
        "profile",
        help="run a script for some steps, and say what the time of a step goes into",
        usage="replicax profile SCRIPT [options] [-- args of the script ...]",
        description=_PROFILE,
        epilog=_PROFILE_EXAMPLES,
    )
    parser.add_argument("script", type=existing, metavar="SCRIPT", help="a Python file that trains")
    parser.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help="train on N devices of this machine, whichever strategy the script makes; without an "
        "accelerator the CPU is made to look like N devices (default: as the script does)",
    )
    add_steps(parser)
    parser.add_argument(
        "--no-trace",
        dest="traced",
        action="store_const",
        const=0,
        default=5,
        help="no trace: nothing is said of what single devices do",
    )
    parser.add_argument(
        "--output",
        default="profile",
        metavar="DIR",
        help="the folder of the trace, for `tensorboard --logdir` (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write every number")
    parser.add_argument("--markdown", metavar="FILE", help="write the page in Markdown")


def add_steps(parser: Any) -> None:
    """Add the options for the number of steps."""
    parser.add_argument(
        "--steps",
        type=positive,
        default=20,
        metavar="K",
        help="measure so many training steps, then end the script (default: %(default)s)",
    )
    parser.add_argument(
        "--warm-up",
        type=positive,
        default=3,
        metavar="K",
        help="steps before these, in which programs are compiled (default: %(default)s)",
    )


def profile_request(request: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The options of the child, from those of `replicax profile` and of the script."""
    return {**request, "args": list(arguments), "scale": 1.0, "of_workers": False, "log": None}


def profile_environment(
    environ: Mapping[str, str], replicas: int | None, *, cores: int
) -> dict[str, str]:
    """The environment of the child: Keras on JAX, and enough virtual devices.

    `replicas` None lets the script train on as many as it does by itself.
    """
    asked: dict[str, str] = {}
    if replicas is not None:
        # JAX starts before the script, which may ask for more devices itself.
        devices = {"JAX_NUM_CPU_DEVICES": str(max(_SPARE_DEVICES, replicas))}
        asked = device_variables(replicas, cores) | devices
    return {
        **environ,
        "KERAS_BACKEND": environ.get("KERAS_BACKEND", "jax"),
        **asked,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **without_idle_libtpu(environ, chips_on_bus()),
    }
