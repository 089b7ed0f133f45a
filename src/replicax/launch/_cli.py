"""The arguments of `replicax`, and the child process in which `replicax.report` does the work.

JAX fixes the number of virtual CPU devices and the size of its thread pool when it starts, so
both are put into the environment of a child process, which also keeps this module free of JAX.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from replicax._core.env import without_idle_libtpu
from replicax.cluster_resolver._tpu_slice import chips_on_bus
from replicax.launch._child import run_child
from replicax.launch._devices import device_variables
from replicax.launch._doctor_arguments import add_doctor
from replicax.launch._for_script import COMMANDS, child_for_script
from replicax.launch._migrate_arguments import add_migrate, migrate_environment
from replicax.launch._plan_arguments import add_plan, without_script_arguments
from replicax.launch._profile_arguments import add_profile
from replicax.launch._run_arguments import add_run, positive
from replicax.launch._verify_arguments import add_verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # argparse has no public name for what add_subparsers() and add_argument_group() return.
    _Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # pyright: ignore[reportPrivateUsage]
    _Options = argparse.ArgumentParser | argparse._ArgumentGroup  # pyright: ignore[reportPrivateUsage]

DATASETS = ("digits", "cifar10")
MODELS = ("cnn", "mlp", "resnet20")
STRATEGIES = ("default", "one_device", "mirrored", "central_storage")

_DEFAULT_CPU_REPLICAS = 2

_DESCRIPTION = """\
The strategies of tf.distribute for Keras 3 on JAX.
`replicax COMMAND --help` explains a command."""

_COMPARE = """\
Train one model from the same weights on the same batches under every strategy, and compare
what comes out and how fast: a table here; tables, plots and every raw number in --output."""

_COMPARE_EXAMPLES = """\
examples:
  replicax compare
  replicax compare --replicas 4 --model mlp
  replicax compare --strategies mirrored --epochs 20 --output mirrored
  replicax compare --dataset cifar10 --data-dir ~/cifar-10-batches-py --examples 5000

exit code: 0 if every strategy ends with the weights of one device; 1 if one does not, or if
something fails; 2 for a bad argument."""

_DEVICES = """\
List the devices JAX sees on this machine and what each strategy would do with them."""

_DEVICES_EXAMPLES = """\
examples:
  replicax devices
  replicax devices --replicas 4
  replicax devices --json"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `replicax` with `arguments`, by default those of the process; return its exit code."""
    typed = sys.argv[1:] if arguments is None else arguments
    if typed and typed[0] in COMMANDS:
        return _for_script(typed)
    if typed[:1] == ["verify"]:
        return _on_script("verify", typed)
    request = vars(build_parser().parse_args(typed))
    command = str(request.pop("command"))
    if command == "run":
        return _run(request, typed)
    if command == "migrate":
        child = [sys.executable, "-m", "replicax._migrate", json.dumps(request)]
        return run_child(child, migrate_environment(os.environ))
    child = [sys.executable, "-m", "replicax.report", command, json.dumps(request)]
    return run_child(child, child_environment(os.environ, replicas=request["replicas"]))


def _run(request: dict[str, Any], typed: Sequence[str]) -> int:
    """Load what help does not need, and run the program."""
    from replicax.launch._run import Request, run_command

    return run_command(Request(**request), typed, os.environ)


def _for_script(typed: Sequence[str]) -> int:
    """Run a command for a script, in a child process; what is behind `--` is for the script."""
    own, of_script = without_script_arguments(typed)
    request = vars(build_parser().parse_args(own))
    command = str(request.pop("command"))
    return run_child(*child_for_script(command, request, of_script, os.environ))


def _on_script(command: str, typed: Sequence[str]) -> int:
    """Do something with a script in a child process, where the CPU looks like several devices."""
    own, of_script = without_script_arguments(typed)
    request = vars(build_parser().parse_args(own))
    options = json.dumps({**request, "args": of_script})
    environment = child_environment(os.environ, replicas=request["replicas"])
    return run_child([sys.executable, "-m", f"replicax._{command}", options], environment)


def child_environment(environ: Mapping[str, str], *, replicas: int | None) -> dict[str, str]:
    """What the child must find in its environment before it imports JAX.

    Args:
        environ: The environment to start from.
        replicas: How many devices are asked for; None leaves the choice to the machine.

    Returns:
        `environ` with Keras on JAX, `replicas` virtual CPU devices, and a thread pool with room
        for all: XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread. Without
        a TPU, libtpu is kept out.
    """
    devices = replicas or _DEFAULT_CPU_REPLICAS
    return {
        **environ,
        "KERAS_BACKEND": "jax",
        **device_variables(devices, os.cpu_count() or 1),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **without_idle_libtpu(environ, chips_on_bus()),
    }


def build_parser() -> argparse.ArgumentParser:
    """The parser of `replicax` with all its commands."""
    parser = argparse.ArgumentParser(
        prog="replicax",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"replicax {_version()}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_compare(commands)
    _add_devices(commands)
    add_doctor(commands)
    add_migrate(commands)
    add_plan(commands)
    add_profile(commands)
    add_run(commands)
    add_verify(commands)
    return parser


def _add_compare(commands: _Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="train under every strategy of this machine and compare results and speed",
        description=_COMPARE,
        epilog=_COMPARE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_training(parser.add_argument_group("what is trained"))
    _add_comparison(parser.add_argument_group("how it is compared"))


def _add_training(what: _Options) -> None:
    what.add_argument(
        "--dataset",
        choices=DATASETS,
        default="digits",
        help="digits: 1797 handwritten digits that come with scikit-learn; "
        "cifar10: 60000 photographs, downloaded by Keras or read from --data-dir "
        "(default: %(default)s)",
    )
    what.add_argument(
        "--data-dir",
        metavar="DIR",
        help="folder with the CIFAR-10 files, in the Python or the binary version; no download",
    )
    what.add_argument(
        "--model", choices=MODELS, default="cnn", help="the network (default: %(default)s)"
    )
    what.add_argument(
        "--examples",
        type=positive,
        metavar="LIMIT",
        help="train on the first LIMIT examples and test on a quarter as many (default: all)",
    )
    what.add_argument(
        "--epochs",
        type=positive,
        default=8,
        metavar="E",
        help="passes over the training examples (default: %(default)s)",
    )
    what.add_argument(
        "--batch-size",
        type=positive,
        default=64,
        metavar="B",
        help="examples in a global batch, which the replicas share (default: %(default)s)",
    )
    what.add_argument(
        "--seed",
        type=_seed,
        default=0,
        metavar="S",
        help="of the initial weights, the split and the order of the data (default: %(default)s)",
    )


def _add_comparison(how: _Options) -> None:
    how.add_argument(
        "--strategies",
        type=_strategies,
        default=STRATEGIES,
        metavar="NAME,...",
        help=f"any of {','.join(STRATEGIES)}; one_device, which the others are compared with, "
        "always takes part (default: all)",
    )
    _add_replicas(how)
    how.add_argument(
        "--repeats",
        type=positive,
        default=5,
        metavar="K",
        help="rounds in which the strategies are timed in turn (default: %(default)s)",
    )
    how.add_argument(
        "--output", default="report", metavar="DIR", help="folder to write (default: %(default)s)"
    )


def _add_devices(commands: _Commands) -> None:
    parser = commands.add_parser(
        "devices",
        help="list the devices of this machine and what each strategy would use",
        description=_DEVICES,
        epilog=_DEVICES_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_replicas(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def _add_replicas(parser: _Options) -> None:
    parser.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help="devices to use; without an accelerator the CPU is made to look like N devices "
        f"(default: every accelerator, or {_DEFAULT_CPU_REPLICAS} on a CPU)",
    )


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(
            f"Must be a whole number from 0 to 4294967295. Received: {text!r}. "
            "NumPy and Keras take no other seed. Write it in digits, as in 0."
        )
    return int(text)


def _strategies(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"Must be names of strategies with commas between them. Received: {unknown[0]!r}. "
            f"The strategies are {', '.join(STRATEGIES)}. Write for example one_device,mirrored."
        )
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"Must name each strategy once. Received: {text!r}. "
            "A second run of the same strategy would be counted as another one. "
            "Use --repeats to measure more often."
        )
    return names


def _version() -> str:
    try:
        return metadata.version("replicax")
    except metadata.PackageNotFoundError:
        return "(not installed)"
