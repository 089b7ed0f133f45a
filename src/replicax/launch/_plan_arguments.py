"""The arguments of the tools that read a program: `plan` and `migrate`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from replicax.launch._run_arguments import (
    Commands,
    add_number,
    existing,
    file,
    positives,
    strategies,
)

_PLAN = """\
Compile a model's training step for machines that are not here, and show its needs there: memory
per device, the largest batch that fits, FLOPs, and bytes on the network. Google's compiler (pip
install "replicax[tpu]") compiles for TPUs without a TPU. Nothing is trained.

TARGET is a script, which is run up to its first call of `fit`; a saved .keras file;
keras.applications:NAME; or keras_hub:PRESET."""

_PLAN_EXAMPLES = """\
examples:
  replicax plan train.py --tpu v5e:4x4 --tpu v5p:2x2x2 --strategies mirrored,zero1,zero3
  replicax plan keras.applications:ResNet50 --tpu v5e:2x4 --batch 1024
  replicax plan model.keras --cpu 8 --json plan.json --plot plan.png
  replicax plan train.py --tpu v5e:2x4 --scale 1,8,64,512,4096 --no-bisect
  replicax plan train.py --tpu v4:2x2x2 --no-bisect -- --epochs 1

exit code: 0 if a plan was made, even if the model does not fit; 2 for a bad argument or a model
that cannot be planned; if the script fails, its exit code."""

STRATEGIES = ("one_device", "mirrored", "zero1", "zero3", "model_parallel:M")
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16")


def add_plan(commands: Commands) -> None:
    parser = commands.add_parser(
        "plan",
        help="compile a training step for TPUs and other machines, and show its memory and FLOPs",
        usage="replicax plan TARGET [options] [-- args of the script ...]",
        description=_PLAN,
        epilog=_PLAN_EXAMPLES,
    )
    parser.add_argument(
        "target", type=_target, metavar="TARGET", help="a script or a model; see above"
    )
    _add_where(parser.add_argument_group("machines"))
    _add_what(parser.add_argument_group("training"))
    _add_output(parser.add_argument_group("output"))


def _add_where(where: Any) -> None:
    where.add_argument(
        "--tpu",
        action="append",
        default=[],
        metavar="KIND:SHAPE",
        help="a slice of TPUs, its shape in chips: v5e:4x4, v6e:2x4, v5p:2x2x2, v4:2x2x2, v3:4x4, "
        "v2:2x2; can be repeated (default: v5e:2x4, unless another machine is named)",
    )
    add_number(where, "--cpu", "N", "N virtual devices of this machine's CPU")
    add_number(where, "--gpu", "N", "N GPUs of the kind that is here")
    where.add_argument(
        "--strategies",
        type=partial(strategies, known=STRATEGIES),
        default=("mirrored",),
        metavar="NAME,...",
        help="any of one_device, mirrored, zero1 (the optimizer's variables are "
        "divided), zero3 (all variables are divided), model_parallel:M (default: mirrored)",
    )


def _add_what(what: Any) -> None:
    add_number(
        what,
        "--batch",
        "B",
        "examples in a global batch, which the replicas share (default: as in the script, or 32)",
    )
    what.add_argument(
        "--no-bisect",
        dest="bisect",
        action="store_false",
        help="do not look for the largest batch that fits, which takes up to 6 compilations for "
        "each row",
    )
    what.add_argument(
        "--precision",
        choices=PRECISIONS,
        help="Keras' dtype policy for a script or a named model (default: Keras' own)",
    )
    what.add_argument(
        "--scale",
        type=positives,
        default=(),
        metavar="N,...",
        help="also calculate the bytes that a device sends on other numbers of chips, such as "
        "1,8,64,512,4096, with the same batch per chip; half of the slice is compiled, too, to "
        "check the arithmetic",
    )


def _add_output(output: Any) -> None:
    output.add_argument("--json", metavar="FILE", help="write every number")
    output.add_argument("--plot", metavar="FILE", help="draw memory per device, such as plan.png")


def _target(text: str) -> str:
    return text if text.startswith(("keras.applications:", "keras_hub:")) else file(text)


def topologies(request: Mapping[str, Any]) -> list[str]:
    """The names of the machines to plan for, from the options."""
    others = [f"{kind}:{request[kind]}" for kind in ("cpu", "gpu") if request[kind] is not None]
    return [*request["tpu"], *others] or ["v5e:2x4"]


_MIGRATE = """\
Check whether each program runs on replicax.tf. List, by file and line, the names and calls of
TensorFlow and Keras that differ or are missing, with a replacement, and the number of calls that
could be checked. Then rewrite `import tensorflow as tf` as `import replicax.tf as tf`, the choice
of Keras' backend, and names that NumPy 2 renamed; the rest of the file stays as it is. Programs
are read; --run runs them, too.

PATH is a script, a notebook or a folder of them. In a folder a program is a notebook, a file with
`if __name__ == "__main__"` or the name of a script, with what it imports from the folder. A
notebook's magics, outputs and metadata stay."""

_MIGRATE_EXAMPLES = """\
examples:
  replicax migrate train.py
  replicax migrate train.py --diff
  replicax migrate notebooks/ --write --backup
  replicax migrate train.py --json names.json
  replicax migrate train.py --run -- --epochs 1

exit code: 0 if nothing is missing, as far as calls are checked; 1 if something is missing, if a
program that --run starts fails where nothing was found, or if a file in a folder could not be
read; 2 for a bad argument, or a given file that cannot be read."""


def add_migrate(commands: Commands) -> None:
    parser = commands.add_parser(
        "migrate",
        help="check whether a TensorFlow program runs on replicax.tf, and rewrite its imports",
        description=_MIGRATE,
        epilog=_MIGRATE_EXAMPLES,
    )
    parser.add_argument(
        "paths", nargs="+", type=existing, metavar="PATH", help="a script, notebook or folder"
    )
    parser.add_argument("--diff", action="store_true", help="show the changes, without writing")
    parser.add_argument("--write", action="store_true", help="show and write the changes")
    parser.add_argument(
        "--backup", action="store_true", help="with --write: keep each old file as FILE.orig"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="also run each program, rewritten in a temporary copy of its folder, under "
        "MirroredStrategy, and compare the result with the findings; arguments after -- go to the "
        "program",
    )
    add_number(parser, "--steps", "K", "with --run: end it after K training steps", default=3)
    add_number(parser, "--replicas", "N", "with --run: on N virtual devices", default=2)
    add_number(parser, "--time-limit", "SECONDS", "with --run: end it after this time", default=120)
    parser.add_argument("--json", metavar="FILE", help="write all findings")
