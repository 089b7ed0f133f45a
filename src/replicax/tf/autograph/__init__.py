"""`tf.autograph`: Python's control flow, converted for compiled code: see tf/_autograph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.autograph import experimental as experimental


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Nothing: what could not be converted is said by the error that follows from it."""
    del level, alsologtostdout


def trace(*args: Any) -> None:
    """Nothing; `print` runs while a function is traced."""
    del args


def to_code(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> str:
    """The source that a function is converted to."""
    from replicax.tf._autograph.converting import code_of

    return code_of(entity)


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """The function that a function is converted to."""
    from replicax.tf._autograph.converting import converted

    return converted(getattr(entity, "python_function", entity))


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
