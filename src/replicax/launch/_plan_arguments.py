"""The arguments of `replicax plan`, and the environment of the child process that plans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from replicax.launch._plan import device_variables
from replicax.launch._run_arguments import existing, positive, strategies

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_PLAN = """\
Compile a model's training step for machines that are not here, and say what it needs there: bytes
per device against its memory, the largest batch that fits, FLOPs, and bytes on the wire. TPUs are
compiled for by Google's compiler (pip install "replicax[tpu]"), which needs no TPU. Nothing is
trained.

TARGET is a script, which is run up to its first call of `fit`; a saved .keras file;
keras.applications:NAME; or keras_hub:PRESET."""

_PLAN_EXAMPLES = """\
examples:
  replicax plan train.py --tpu v5e:4x4 --tpu v5p:2x2x2 --strategies mirrored,zero1,zero3
  replicax plan keras.applications:ResNet50 --tpu v5e:2x4 --batch 1024
  replicax plan model.keras --cpu 8 --json plan.json --plot plan.png
  replicax plan train.py --tpu v5e:2x4 --scale 1,8,64,512,4096 --no-bisect
  replicax plan train.py --tpu v4:2x2x2 --no-bisect -- --epochs 1

exit code: 0 if a plan was made, also of what does not fit; 2 for a bad argument or a model that
cannot be planned; else that of a script that fails."""

STRATEGIES = ("one_device", "mirrored", "zero1", "zero3", "model_parallel:M")
PRECISIONS = ("float32", "bfloat16", "mixed_bfloat16", "float16", "mixed_float16")


def add_plan(commands: Any) -> None:
    """Add the command `plan`."""
    parser = commands.add_parser(
        "plan",
        help="compile a training step for TPUs and others, and say what it needs there",
        usage="replicax plan TARGET [options] [-- args of the script ...]",
        description=_PLAN,
        epilog=_PLAN_EXAMPLES,
    )
    parser.add_argument("target", type=_target, metavar="TARGET", help="what is planned; see above")
    _add_where(parser.add_argument_group("for which machines"))
    _add_what(parser.add_argument_group("what is planned"))
    _add_output(parser.add_argument_group("what is written"))


def _add_where(where: Any) -> None:
    where.add_argument(
        "--tpu",
        action="append",
        default=[],
        metavar="KIND:SHAPE",
        help="a slice of TPUs, its shape in chips: v5e:4x4, v6e:2x4, v5p:2x2x2, v4:2x2x2, v3:4x4, "
        "v2:2x2; can be repeated (default: v5e:2x4, unless another machine is named)",
    )
    where.add_argument(
        "--cpu", type=positive, metavar="N", help="N virtual devices of this machine's CPU"
    )
    where.add_argument("--gpu", type=positive, metavar="N", help="N GPUs of the kind that is here")
    where.add_argument(
        "--strategies",
        type=partial(strategies, known=STRATEGIES),
        default=("mirrored",),
        metavar="NAME,...",
        help="any of one_device, mirrored, zero1 (what the optimizer keeps is divided), zero3 "
        "(all variables are), model_parallel:M (default: mirrored)",
    )


def _add_what(what: Any) -> None:
    what.add_argument(
        "--batch",
        type=positive,
        metavar="B",
        help="examples in a global batch, which the replicas share (default: that of the script, "
        "or 32)",
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
        type=chip_counts,
        default=(),
        metavar="N,...",
        help="also say, by arithmetic, what a device sends on other numbers of chips, such as "
        "1,8,64,512,4096, each with its part of the batch as it is; half of the slice is compiled, "
        "too, to check it",
    )


def _add_output(output: Any) -> None:
    output.add_argument("--json", metavar="FILE", help="write every number")
    output.add_argument("--plot", metavar="FILE", help="draw memory per device, such as plan.png")


def _target(text: str) -> str:
    return text if text.startswith(("keras.applications:", "keras_hub:")) else existing(text)


def chip_counts(text: str) -> tuple[int, ...]:
    """Read numbers of chips separated by commas."""
    return tuple(positive(count.strip()) for count in text.split(","))


def without_script_arguments(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and the script's behind the first `--`."""
    end = typed.index("--") if "--" in typed else len(typed)
    return list(typed[:end]), list(typed[end + 1 :])


def plan_request(request: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The options of the child, from those of `replicax plan` and of the script."""
    options = {**request, "args": list(arguments)}
    tpus, cpu, gpu = options.pop("tpu"), options.pop("cpu"), options.pop("gpu")
    others = [f"cpu:{cpu}"] * (cpu is not None) + [f"gpu:{gpu}"] * (gpu is not None)
    return {**options, "topologies": [*tpus, *others] or ["v5e:2x4"]}


def plan_environment(
    environ: Mapping[str, str], request: Mapping[str, Any], *, cores: int
) -> dict[str, str]:
    """The environment of the child: JAX on the CPU, with the number of virtual devices asked for.

    `environ` may ask for more devices than the request.
    """
    asked = environ.get("JAX_NUM_CPU_DEVICES", "")
    devices = max(request["cpu"] or 1, int(asked) if asked.isdigit() else 1)
    return {
        **environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cuda,cpu" if request["gpu"] else "cpu",
        **device_variables(devices, cores),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
