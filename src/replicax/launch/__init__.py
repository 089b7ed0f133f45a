"""The command `replicax`, and `run`: programs and functions as the workers of a cluster.

The standard library only, so that it answers in milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicax.launch._function import run as run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    """Load `run` at its first use, because the help of the command does not need it."""
    if name != "run":
        raise AttributeError(
            f"replicax.launch has no public name {name!r}. Use `rx.launch.run`, or `replicax` in "
            "a shell."
        )
    from replicax.launch._function import run

    globals()["run"] = run
    return run


def __dir__() -> list[str]:
    return __all__
