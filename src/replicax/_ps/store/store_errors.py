"""What a store says of variables and optimizers that it cannot take."""

from __future__ import annotations

from typing import Any

from replicax._core.errors import UsageError


def cannot_shard(variable: Any, optimizer: Any, constraint: Any) -> UsageError:
    """For a variable in shards that is updated as a whole."""
    what = f"the constraint {type(constraint).__name__}" if constraint else "its update"
    return UsageError(
        "A variable that is divided by rows needs an update that works on each row by itself. "
        f"Received: '{variable.path}' in several shards, with {type(optimizer).__name__}; {what} "
        "looks at the variable as a whole. No server has all of it. Pass no "
        "`variable_partitioner`, or one that leaves this variable whole."
    )


def two_optimizers(path: str) -> UsageError:
    """For a variable that a second optimizer has taken over."""
    return UsageError(
        "A variable on a parameter server is trained by one optimizer at a time. Received: "
        f"'{path}', which another optimizer has taken over. What the first one keeps beside it is "
        "gone. Train it by one optimizer; or make a new one, which begins with nothing."
    )


def cannot_take_apart(optimizer: Any) -> UsageError:
    """For an optimizer whose variables cannot be told apart."""
    return UsageError(
        "An optimizer keeps its variables in attributes: one for all, or a list with one for each "
        f"that is trained. Received: {type(optimizer).__name__}, some of whose variables are "
        "elsewhere. A server holds those of the values that it has, and has to tell them apart. "
        "Keep them as Keras' optimizers do."
    )
