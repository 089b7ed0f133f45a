"""`tf.autograph`: functions are traced as they are; there is nothing to convert."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf.autograph import experimental as experimental


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Nothing: there is nothing to tell."""
    del level, alsologtostdout


def trace(*args: Any) -> None:
    """Nothing; `print` runs while a function is traced."""
    del args


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
