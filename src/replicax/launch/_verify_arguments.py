"""The arguments of `replicax verify`."""

from __future__ import annotations

from functools import partial
from typing import Any

from replicax.launch._compare_arguments import add_replicas, seed
from replicax.launch._run_arguments import existing, positive, strategies

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
