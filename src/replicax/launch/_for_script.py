"""The child processes of the commands that run a script: their options and their environment."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from replicax.launch._compare_arguments import child_environment
from replicax.launch._doctor_arguments import doctor_request
from replicax.launch._plan_arguments import plan_environment, plan_request
from replicax.launch._profile_arguments import profile_environment, profile_request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMANDS = ("doctor", "plan", "profile", "verify")


def child_for_script(
    command: str,
    request: Mapping[str, Any],
    arguments: Sequence[str],
    environ: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """The arguments and environment of the child process of one of `COMMANDS`."""
    cores = os.cpu_count() or 1
    if command == "plan":
        options = plan_request(request, arguments)
        environment = plan_environment(environ, request, cores=cores)
    elif command == "profile":
        options = profile_request(request, arguments)
        environment = profile_environment(environ, request["replicas"], cores=cores)
    elif command == "verify":
        options = {**request, "args": arguments}
        environment = child_environment(environ, replicas=request["replicas"])
    else:
        options = doctor_request(request, arguments)
        environment = profile_environment(environ, None, cores=cores)
    return [sys.executable, "-m", f"replicax._tools.{command}", json.dumps(options)], environment
