"""The arguments of the tools that train: `compare`, `devices`, `doctor`, `profile`, `verify`."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from replicax.launch._environments import USUAL_REPLICAS
from replicax.launch._run_arguments import (
    Commands,
    Options,
    add_number,
    file,
    positive,
    positives,
    strategies,
)

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
    _add_training(parser.add_argument_group("training"))
    _add_comparison(parser.add_argument_group("comparison"))


def _add_training(what: Options) -> None:
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
    add_number(
        what,
        "--examples",
        "LIMIT",
        "train on the first LIMIT examples and test on a quarter as many (default: all)",
    )
    add_number(what, "--epochs", "E", "passes over the training examples", default=8)
    add_number(
        what,
        "--batch-size",
        "B",
        "examples in a global batch, which the replicas share",
        default=64,
    )
    what.add_argument(
        "--seed",
        type=seed,
        default=0,
        metavar="S",
        help="of the initial weights, the split and the order of the data (default: %(default)s)",
    )


def _add_comparison(how: Options) -> None:
    how.add_argument(
        "--strategies",
        type=_strategies,
        default=STRATEGIES[:4],
        metavar="NAME,...",
        help=f"any of {','.join(STRATEGIES)}; one_device, which the others are compared with, "
        "always takes part (default: the first four)",
    )
    add_replicas(how)
    add_number(
        how,
        "--workers",
        "W",
        "add multi_worker and parameter_server, or the one of them that --strategies names, with "
        "W worker processes on this machine's CPU (default: 2 if one is named); parameter_server "
        "needs Ray",
    )
    add_number(how, "--repeats", "K", "rounds in which the strategies are timed in turn", default=5)
    how.add_argument(
        "--output", default="report", metavar="DIR", help="folder to write (default: %(default)s)"
    )
    how.add_argument("--open", action="store_true", help="show report.html in the browser")


def add_devices(commands: Commands) -> None:
    parser = commands.add_parser(
        "devices",
        help="list the devices of this machine and the devices that each strategy would use",
        description=_DEVICES,
        epilog=_DEVICES_EXAMPLES,
    )
    add_replicas(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def add_replicas(parser: Options) -> None:
    parser.add_argument(
        "--replicas",
        type=positive,
        metavar="N",
        help="devices to use; without an accelerator the CPU is made to look like N devices "
        f"(default: every accelerator, or {USUAL_REPLICAS} on a CPU)",
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


def add_doctor(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="check the installation; measure how a script scales, and find its slow parts",
        usage="replicax doctor [SCRIPT] [options] [-- args of the script ...]",
        description=_DOCTOR,
        epilog=_DOCTOR_EXAMPLES,
    )
    parser.add_argument(
        "script", nargs="?", type=file, metavar="SCRIPT", help="a Python file that trains"
    )
    parser.add_argument(
        "--replicas",
        type=positives,
        metavar="N,...",
        help="numbers of devices to train on; without an accelerator the CPU stands in for "
        "that many (default: 1,2, or 1 on a machine with one accelerator)",
    )
    add_number(
        parser,
        "--workers",
        "N",
        "train on N workers, too, which are processes of this machine with one device each, and "
        "compare them (default: none)",
    )
    add_steps(parser)
    parser.add_argument("--json", metavar="FILE", help="write every number")


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

exit code: 0 if there is a profile; 2 for a bad argument or a script that makes no such steps; if
the script fails, its exit code."""


def add_profile(commands: Commands) -> None:
    parser = commands.add_parser(
        "profile",
        help="run some steps of a script, and show where the time goes",
        usage="replicax profile SCRIPT [options] [-- args of the script ...]",
        description=_PROFILE,
        epilog=_PROFILE_EXAMPLES,
    )
    parser.add_argument("script", type=file, metavar="SCRIPT", help="a Python file that trains")
    add_number(
        parser,
        "--replicas",
        "N",
        "train on N devices of this machine, whichever strategy the script makes; without an "
        "accelerator the CPU is made to look like N devices (default: as the script does)",
    )
    add_steps(parser)
    parser.add_argument(
        "--no-trace",
        dest="traced",
        action="store_const",
        const=0,
        default=5,
        help="no trace: the report has no times of single devices",
    )
    parser.add_argument(
        "--output",
        default="profile",
        metavar="DIR",
        help="the folder of the trace, for `tensorboard --logdir` (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write every number")
    parser.add_argument("--markdown", metavar="FILE", help="write the page in Markdown")
    parser.set_defaults(scale=1.0, of_workers=False, log=None)  # for the doctor


def add_steps(parser: Any) -> None:
    add_number(parser, "--steps", "K", "measure K training steps, then end the script", default=20)
    add_number(
        parser, "--warm-up", "K", "steps before these, in which programs are compiled", default=3
    )


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

VERIFIED = ("mirrored", "central_storage", "zero1", "zero3", "model_parallel")


def add_verify(commands: Commands) -> None:
    parser = commands.add_parser(
        "verify",
        help="compare a script's training under each strategy with that on one device",
        usage="replicax verify SCRIPT [options] [-- args of the script ...]",
        description=_VERIFY,
        epilog=_VERIFY_EXAMPLES,
    )
    parser.add_argument("target", type=file, metavar="SCRIPT", help="a training script")
    add_replicas(parser)
    parser.add_argument(
        "--strategies",
        type=partial(strategies, known=VERIFIED),
        default=VERIFIED[:2],
        metavar="NAME,...",
        help=f"any of {','.join(VERIFIED)} (default: mirrored,central_storage)",
    )
    add_number(
        parser,
        "--steps",
        "K",
        "training steps to compare; as many as reach the end of an epoch include its last, uneven"
        " batch",
        default=8,
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
