"""The arguments of `replicax compare` and `devices`, and the environment of their child process.

JAX fixes the number of virtual CPU devices and the size of its thread pool when it starts. Setting
both in the environment of a child keeps this module free of JAX.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from replicax._core.env import without_idle_libtpu
from replicax.cluster_resolver._tpu_slice import chips_on_bus
from replicax.launch._plan import device_variables
from replicax.launch._run_arguments import positive, strategies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replicax.launch._run_arguments import Commands

    # argparse has no public name for what add_argument_group() returns.
    _Options = argparse.ArgumentParser | argparse._ArgumentGroup  # pyright: ignore[reportPrivateUsage]

DATASETS = ("digits", "cifar10")
MODELS = ("cnn", "mlp", "resnet20")
# The first four are compared by default; the others are several processes.
STRATEGIES = (
    "default",
    "one_device",
    "mirrored",
    "central_storage",
    "multi_worker",
    "parameter_server",
)

_DEFAULT_CPU_REPLICAS = 2

_COMPARE = """\
Train one model from the same weights on the same batches under every strategy, and compare what
comes out and how fast: a table here; in --output a page for the browser, report.html, and tables,
plots and every raw number."""

_COMPARE_EXAMPLES = """\
examples:
  replicax compare
  replicax compare --open
  replicax compare --replicas 4 --model mlp
  replicax compare --workers 2
  replicax compare --strategies mirrored --epochs 20 --output mirrored
  replicax compare --dataset cifar10 --examples 5000

exit code: 0 if every synchronous strategy ends with the weights of one device; 1 if one does not,
or if something fails; 2 for a bad argument."""

_DEVICES = """\
List the devices JAX sees on this machine and what each strategy would do with them."""

_DEVICES_EXAMPLES = """\
examples:
  replicax devices
  replicax devices --replicas 4
  replicax devices --json"""


def add_compare(commands: Commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="train under every strategy of this machine and compare results and speed",
        description=_COMPARE,
        epilog=_COMPARE_EXAMPLES,
    )
    _add_training(parser.add_argument_group("what is trained"))
    _add_comparison(parser.add_argument_group("how it is compared"))


def _add_training(what: _Options) -> None:
    what.add_argument(
        "--dataset",
        choices=DATASETS,
        default="digits",
        help="digits: 1797 handwritten digits that come with scikit-learn; "
        "cifar10: 60000 photographs, downloaded by Keras (default: %(default)s)",
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
        type=seed,
        default=0,
        metavar="S",
        help="of the initial weights, the split and the order of the data (default: %(default)s)",
    )


def _add_comparison(how: _Options) -> None:
    how.add_argument(
        "--strategies",
        type=_strategies,
        default=STRATEGIES[:4],
        metavar="NAME,...",
        help=f"any of {','.join(STRATEGIES)}; one_device, which the others are compared with, "
        "always takes part (default: the first four)",
    )
    add_replicas(how)
    how.add_argument(
        "--workers",
        type=positive,
        metavar="W",
        help="add multi_worker and parameter_server, or the one of them that --strategies names, "
        "with W worker processes on this machine's CPU (default: 2 if one is named); "
        "parameter_server needs Ray",
    )
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
    how.add_argument("--open", action="store_true", help="show report.html in the browser")


def add_devices(commands: Commands) -> None:
    parser = commands.add_parser(
        "devices",
        help="list the devices of this machine and what each strategy would use",
        description=_DEVICES,
        epilog=_DEVICES_EXAMPLES,
    )
    add_replicas(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_replicas(parser: _Options) -> None:
    """Add the option for the number of devices."""
    parser.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help="devices to use; without an accelerator the CPU is made to look like N devices "
        f"(default: every accelerator, or {_DEFAULT_CPU_REPLICAS} on a CPU)",
    )


def seed(text: str) -> int:
    """Read a seed that NumPy and Keras accept."""
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 0 to 4294967295, got {text!r}"
        )
    return int(text)


def _strategies(text: str) -> tuple[str, ...]:
    names = strategies(text, STRATEGIES)
    if len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(
            f"must name each strategy once, got {text!r}. Use --repeats to measure more often."
        )
    return names


def child_environment(environ: Mapping[str, str], *, replicas: int | None) -> dict[str, str]:
    """The environment that the child must have before it imports JAX: Keras on JAX, virtual CPUs.

    `replicas` None leaves the number of devices to the machine. The thread pool has room for all:
    XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread. Without a TPU, libtpu is
    kept out.
    """
    devices = replicas or _DEFAULT_CPU_REPLICAS
    return {
        **environ,
        "KERAS_BACKEND": "jax",
        **device_variables(devices, os.cpu_count() or 1),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **without_idle_libtpu(environ, chips_on_bus()),
    }
