"""Errors that a running program raises on the devices, told by JAX's texts here alone."""

from __future__ import annotations

import re

import jax

from replicax._control import current

# A status of the runtime. XLA:CPU raises those of its collectives as a plain ValueError.
_STATUS = re.compile(
    r"(?:UNKNOWN|INTERNAL|ABORTED|CANCELLED|UNAVAILABLE|DEADLINE_EXCEEDED|FAILED_PRECONDITION): "
)


def is_device_error(error: BaseException) -> bool:
    """Whether an error came out of a running program, and so may be another worker's fault."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return True
    return type(error) is ValueError and bool(_STATUS.match(str(error)))


def blame(error: BaseException) -> None:
    """If another worker is the cause of an error, end this process with a message that names it."""
    if current().size > 1 and is_device_error(error):
        current().explain(error)
