"""`replicax` and its commands; most of them work in a child process, which imports JAX.

Each command has a file beside this one for its arguments and the environment of its child.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any

from replicax._core.errors import ReplicaxError, did_you_mean
from replicax.launch._batch_arguments import add_kubernetes, add_slurm
from replicax.launch._child import run_child
from replicax.launch._environments import environment_of
from replicax.launch._init import add_init, init
from replicax.launch._plan_arguments import add_migrate, add_plan, topologies
from replicax.launch._run_arguments import add_run, add_top
from replicax.launch._tool_arguments import (
    add_compare,
    add_devices,
    add_doctor,
    add_profile,
    add_verify,
)

_DESCRIPTION = """\
The strategies of tf.distribute for Keras 3 on JAX.
`replicax COMMAND --help` explains a command."""

# These run, or read, a script of the user; arguments behind `--` are the script's.
_FOR_SCRIPTS = ("doctor", "migrate", "plan", "profile", "verify")
_BAD_ARGUMENT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `replicax` with `arguments`, by default `sys.argv`; return its exit code."""
    typed = sys.argv[1:] if arguments is None else arguments
    if not typed:
        build_parser().print_help()
        return 0
    if typed[0] in _FOR_SCRIPTS:
        return _for_script(typed)
    parser = build_parser()
    request = vars(parser.parse_args(typed))
    command = str(request.pop("command"))
    behind = request.get("args", ())
    options = parser.commands[command].options_in
    if misplaced := set(options(behind)) - set(options(typed[: len(typed) - len(behind)])):
        names, script = " ".join(sorted(misplaced)), request["script"]
        program = f"-m {script}" if request.get("is_module") else script
        print(
            f"replicax {command}: note: the program gets {names}, after {script}; options of "
            f"`replicax {command}` come before it: `replicax {command} {names} … {program}`.",
            file=sys.stderr,
        )
    if command == "run":
        return _run(request, typed)
    if command == "init":
        return init(request)
    if command == "k8s" and not request["image"]:
        parser.commands[command].error("--image is required")
    if command in ("k8s", "slurm"):
        return _write(command, request)
    return _child(command, request)


def _child(command: str, request: Mapping[str, Any]) -> int:
    """Let a process do the work of a command that needs JAX, or more than the standard library."""
    environment = environment_of(command, os.environ, request)
    child = [sys.executable, "-m", "replicax._tools.commands", command, json.dumps(request)]
    return run_child(child, environment)


def _run(request: dict[str, Any], typed: Sequence[str]) -> int:
    """Run the program; help does not need what is imported here."""
    from replicax.launch._run import run_command

    return run_command(request, typed, os.environ)


def _write(command: str, request: dict[str, Any]) -> int:
    from replicax.launch._jobs import Batch, Manifests, write_or_submit

    try:
        if command == "slurm":
            return write_or_submit(Batch(**request))
        print(Manifests(**request).text, end="", flush=True)
    except ReplicaxError as error:
        print(f"replicax {command}: error: {error}", file=sys.stderr)
        return _BAD_ARGUMENT
    return 0


def _for_script(typed: Sequence[str]) -> int:
    """Run a command for a script, in a child process."""
    end = typed.index("--") if "--" in typed else len(typed)
    request = vars(build_parser().parse_args(typed[:end]))
    command = str(request.pop("command"))
    request["args"] = list(typed[end + 1 :])
    if command == "plan":
        request["topologies"] = topologies(request)
    return _child(command, request)


def build_parser() -> _Parser:
    parser = _Parser(prog="replicax", description=_DESCRIPTION)
    parser.add_argument("--version", action="version", version=f"replicax {_version()}")
    commands: Any = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parser.commands = commands.choices
    add_compare(commands)
    add_devices(commands)
    add_doctor(commands)
    add_init(commands)
    add_kubernetes(commands)
    add_migrate(commands)
    add_plan(commands)
    add_profile(commands)
    add_run(commands)
    add_slurm(commands)
    add_top(commands)
    add_verify(commands)
    return parser


class _Parser(argparse.ArgumentParser):
    """A parser, and of each command, that keeps line breaks and offers the name that was meant."""

    def __init__(self, **options: Any) -> None:
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(formatter_class=raw, allow_abbrev=False, **options)
        self.commands: dict[str, _Parser] = {}

    def parse_known_args(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Refuse unknown arguments here, where the message shows the usage of the command."""
        given = list(args or ())
        first = given[0] if given else "-"
        if self.commands and not first.startswith("-") and first not in self.commands:
            meant = did_you_mean(first, self.commands)
            self.error(f"no command {first!r}.{meant} `replicax` lists all commands.")
        if not any(
            action.nargs in (argparse.REMAINDER, argparse.PARSER) for action in self._actions
        ):
            # Before a value of an unknown option is taken for the script.
            self._refuse([a for a in given if a.startswith("--") and not self.options_in([a])])
        found, unknown = super().parse_known_args(given, namespace)
        self._refuse(unknown)
        return found, unknown

    def _refuse(self, unknown: Sequence[str]) -> None:
        if unknown:
            meant = did_you_mean(unknown[0].partition("=")[0], self._option_string_actions)
            meant = meant or f" `{self.prog} --help` lists the options."
            self.error(f"unrecognized arguments: {' '.join(unknown)}.{meant}")

    def options_in(self, arguments: Sequence[str]) -> list[str]:
        """Return the arguments that are options of this command."""
        own = self._option_string_actions
        names = [argument.partition("=")[0] for argument in arguments]
        return [name for name in names if name.startswith("--") and name in own]


def _version() -> str:
    try:
        return metadata.version("replicax")
    except metadata.PackageNotFoundError:
        return "(not installed)"
