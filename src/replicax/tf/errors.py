"""`tf.errors`: the errors that programs catch, by TensorFlow's names; the classes are others'.

Each name is the class that Replicax, JAX or Python raises where TensorFlow raises its own, so that
`except tf.errors.OutOfRangeError` means here what it means there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax._core.errors import CancelledError as CancelledError
from replicax._core.errors import CorruptRecord as DataLossError
from replicax._core.errors import LeakedTracer as OperatorNotAllowedInGraphError
from replicax._core.errors import OutOfRangeError as OutOfRangeError
from replicax._core.errors import ReplicaxError as OpError
from replicax._core.errors import UnavailableError as UnavailableError
from replicax.tf._missing import missing_name

if TYPE_CHECKING:
    from jax.errors import JaxRuntimeError as InternalError
    from jax.errors import JaxRuntimeError as ResourceExhaustedError
    from jax.errors import JaxRuntimeError as UnknownError

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OpError",
    "OperatorNotAllowedInGraphError",
    "OutOfRangeError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
    "UnknownError",
]

AbortedError = UnavailableError
AlreadyExistsError = FileExistsError
DeadlineExceededError = TimeoutError
FailedPreconditionError = RuntimeError
InvalidArgumentError = ValueError
NotFoundError = FileNotFoundError
PermissionDeniedError = PermissionError
UnauthenticatedError = PermissionError
UnimplementedError = NotImplementedError

# What devices raise is one class of JAX, whose text begins with the kind: "RESOURCE_EXHAUSTED: …".
_OF_DEVICES = {"InternalError", "ResourceExhaustedError", "UnknownError"}


def __getattr__(name: str) -> Any:
    if name in _OF_DEVICES:
        from jax.errors import JaxRuntimeError

        return JaxRuntimeError
    raise missing_name(__name__, name)
