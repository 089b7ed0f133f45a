"""Data sets made by functions, on the coordinator and on every worker, without variables."""

from __future__ import annotations

from typing import Any, final

from replicax._core.errors import UsageError
from replicax._keras.distribution import installed


def made(make: Any) -> Any:
    """The data set that a function makes, or the data set itself."""
    with installed(_Refusal()):
        return make() if callable(make) else make


@final
class _Refusal:
    """Takes the place of a Keras distribution, and refuses to place new variables."""

    def get_variable_layout(self, variable: Any) -> Any:
        raise UsageError(
            "A function that makes a data set makes no variables. Received: a new variable "
            f"'{variable.path}' in it. The function runs on every worker, so there would be one of "
            "them in each, and none on the servers. Make the variable, or the layer that has it, "
            "before, in the strategy's scope; or compute with NumPy."
        )
