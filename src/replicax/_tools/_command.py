"""How the child process of a command, `python -m replicax._tools.NAME OPTIONS`, runs and ends.

`replicax NAME` checks the arguments and starts it; OPTIONS is one JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from replicax._core.errors import ReplicaxError, UsageError, did_you_mean


def answer(name: str, work: Callable[[dict[str, Any]], int], arguments: Sequence[str]) -> int:
    """Do the work of a command; the exit code is 2 for wrong usage, 1 for other errors of ours."""
    if len(arguments) != 1:
        usage = f"usage: python -m replicax._tools.{name} OPTIONS; see replicax {name} --help\n"
        sys.stderr.write(usage)
        return 2
    try:
        return work(json.loads(arguments[0]))
    except ReplicaxError as error:
        sys.stderr.write(f"replicax {name}: error: {error}\n")
        return 2 if isinstance(error, UsageError) else 1


def unknown(what: str, name: str, known: Collection[str]) -> UsageError:
    """The error of a name that is none of those known."""
    meant = did_you_mean(name, known)
    return UsageError(f"No {what} {name!r} here.{meant} Use any of {', '.join(known)}.")
