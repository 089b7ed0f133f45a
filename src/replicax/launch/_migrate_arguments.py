"""The arguments of `replicax migrate`, and the environment of the child process that migrates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from replicax.launch._plan import device_variables
from replicax.launch._run_arguments import existing, positive

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIGRATE = """\
Say for each program whether it runs on replicax.tf, with file and line: which of the names and
calls of TensorFlow and Keras are there, which mean something else, and which are missing and what
to use instead; and how many calls could be checked. Then rewrite its imports,
`import tensorflow as tf` as `import replicax.tf as tf`, the choice of Keras' backend, and names
that NumPy 2 spells otherwise; nothing else in the file is changed. The program is read, and run
only with --run.

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
read; 2 for a bad argument, or a file that was named and cannot be
read."""


def add_migrate(commands: Any) -> None:
    """Add the command `migrate`."""
    parser = commands.add_parser(
        "migrate",
        help="list what a TensorFlow program uses, and rewrite its imports",
        description=_MIGRATE,
        epilog=_MIGRATE_EXAMPLES,
    )
    parser.add_argument(
        "paths", nargs="+", type=existing, metavar="PATH", help="what is migrated; see above"
    )
    parser.add_argument("--diff", action="store_true", help="show what would be rewritten")
    parser.add_argument("--write", action="store_true", help="show it, and rewrite the files")
    parser.add_argument(
        "--backup", action="store_true", help="with --write: keep each old file as FILE.orig"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="also run each program, rewritten in a temporary copy of its folder, under "
        "MirroredStrategy, and say whether that agrees with what was found; what is behind -- are "
        "its arguments",
    )
    parser.add_argument(
        "--steps",
        type=positive,
        default=3,
        metavar="K",
        help="with --run: end it after so many training steps (default: %(default)s)",
    )
    parser.add_argument(
        "--replicas",
        type=positive,
        default=2,
        metavar="N",
        help="with --run: on so many virtual devices (default: %(default)s)",
    )
    parser.add_argument(
        "--time-limit",
        type=positive,
        default=120,
        metavar="SECONDS",
        help="with --run: end it after so long (default: %(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything that is found")


def migrate_environment(environ: Mapping[str, str], *, replicas: int) -> dict[str, str]:
    """The environment of the child: it asks modules for names, and needs no accelerator.

    The programs that it runs inherit `replicas` virtual devices.
    """
    return {
        **{name: value for name, value in environ.items() if name != "TF_CONFIG"},
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        **device_variables(replicas, os.cpu_count() or 1),
        "MPLBACKEND": "Agg",
        "RX_JOIN": "0",
    }
