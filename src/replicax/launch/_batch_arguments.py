"""The arguments of `replicax slurm` and `replicax k8s`, which write what a scheduler reads."""

from __future__ import annotations

import re

from replicax.launch._run_arguments import (
    Commands,
    Options,
    add_number,
    add_program,
    matching,
    not_negative,
    positive,
)

# Of 40 characters at most, because the names of pods are longer.
NAME = re.compile("[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_name = matching(
    NAME.pattern,
    "have at most 40 lower-case letters, digits and hyphens, a letter first, as in train-1",
)
_namespace = matching(
    "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    "have at most 63 lower-case letters, digits and hyphens, a letter or digit first and last "
    "(`kubectl get namespaces` lists those there are)",
)
_quantity = matching(
    r"[0-9]+(\.[0-9]+)?(m|[kMGTP]i?)?", "be a Kubernetes quantity such as 4, 500m or 16Gi"
)
_image = matching(
    r"[\w.-]+(:\d+)?(/[a-z0-9._-]+)*(:[\w.-]+)?(@\w+:[0-9a-f]{32,})?",
    "be an image such as registry.example/train:1",
)
# Slurm reads 2:00 as two minutes.
_time = matching(
    r"(?i)\d+|\d+:\d+:\d+|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE",
    "be [D-]H:M:S, such as 2:00:00, minutes or UNLIMITED",
)
_sbatch_option = matching(r"(?s)-.*", "be an option of sbatch, as in --sbatch=--account=me")

_SLURM = """\
Print a batch script in which `srun replicax run` starts a program as the workers of a cluster, or
hand it to sbatch. Options stand before the program."""

_SLURM_EXAMPLES = """\
examples:
  replicax slurm --nodes 4 --gpus-per-node 8 --time 2:00:00 train.py --epochs 5 > train.sbatch
  replicax slurm --nodes 4 --partition gpu --sbatch=--account=me --submit train.py

exit code: 0; 2 for a bad argument; with --submit the exit code of sbatch."""

_KUBERNETES = """\
Print manifests for a program in an image: a JobSet of workers that train together and a Secret, or
with --ps a RayJob of KubeRay, with a pod for each worker and parameter server. Options stand before
the program, whose path is the one in the image."""

_KUBERNETES_EXAMPLES = """\
examples:
  replicax k8s --workers 4 --gpus 8 --image registry/train train.py | kubectl apply -f -
  replicax k8s --workers 8 --ps 2 --image registry/train train.py > train.yaml

exit code: 0; 2 for a bad argument."""


def add_slurm(commands: Commands) -> None:
    parser = commands.add_parser(
        "slurm",
        help="write, or submit, a batch script that runs a program on nodes of Slurm",
        usage="replicax slurm [options] [-m] script [args ...]",
        description=_SLURM,
        epilog=_SLURM_EXAMPLES,
    )
    add_number(parser, "--nodes", "N", "nodes of the job", default=1)
    parser.add_argument(
        "--workers-per-node",
        type=positive,
        default=1,
        metavar="W",
        help="workers on each node (default: 1, which uses all GPUs of the node)",
    )
    parser.add_argument("--gpus-per-node", type=positive, metavar="G", help="GPUs of each node")
    parser.add_argument(
        "--cpus-per-worker", type=positive, metavar="C", help="CPU cores of each worker"
    )
    parser.add_argument(
        "--time",
        type=_time,
        metavar="[D-]H:M:S",
        help="the limit; workers get SIGTERM two minutes before it",
    )
    parser.add_argument("--partition", metavar="NAME", help="the partition of the cluster")
    parser.add_argument("--name", help="the name of the job (default: the script's)")
    _add_restarts(
        parser,
        0,
        "queue the job again, at most K times, when its workers have saved their state at the "
        "limit or before a preemption",
    )
    parser.add_argument(
        "--sbatch",
        action="append",
        type=_sbatch_option,
        default=[],
        nargs="?",  # so that `--sbatch --account=me` is told how to write it
        const="",
        metavar="OPTION",
        help="one more option of sbatch: --sbatch=--account=me; can be repeated",
    )
    parser.add_argument("--submit", action="store_true", help="hand it to sbatch")
    add_program(parser)


def add_kubernetes(commands: Commands) -> None:
    parser = commands.add_parser(
        "k8s",
        help="write manifests that run a program on Kubernetes",
        usage="replicax k8s --image IMAGE [options] [-m] script [args ...]",
        description=_KUBERNETES,
        epilog=_KUBERNETES_EXAMPLES,
    )
    parser.add_argument(
        "--image", type=image_name, help="an image with Replicax and the program; required"
    )
    add_number(parser, "--workers", "N", "pods that train", default=1)
    add_number(
        parser,
        "--ps",
        "M",
        'parameter servers; the program makes its strategy with address="auto", num_workers=N, '
        "num_ps=M",
    )
    add_number(parser, "--gpus", "G", "GPUs of each worker")
    parser.add_argument(
        "--cpus", type=_quantity, metavar="C", help="CPU cores of each worker: 4 or 500m"
    )
    parser.add_argument(
        "--memory", type=_quantity, metavar="BYTES", help="memory of each pod: 16Gi"
    )
    parser.add_argument(
        "--name", type=_name, help="the name of all objects (default: the script's)"
    )
    parser.add_argument("--namespace", type=_namespace, help="the namespace of all objects")
    _add_restarts(
        parser, 3, "start all again after a failure, at most K times; preemptions do not count"
    )
    parser.add_argument(
        "--ray-version",
        default="2.60.0",
        metavar="V",
        help="with --ps: the version of Ray in the image (default: %(default)s)",
    )
    add_program(parser)


def _add_restarts(parser: Options, default: int, text: str) -> None:
    parser.add_argument(
        "--max-restarts",
        type=not_negative,
        default=default,
        metavar="K",
        help=f"{text} (default: {default})",
    )


def image_name(text: str) -> str:
    """Read the name of an image, as registries allow it, or a template of one."""
    return text if "$" in text or "{{" in text else _image(text)
