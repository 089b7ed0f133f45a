"""Refusing variables where they would be made once for each process."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any, final

from replicax._core.errors import UsageError
from replicax._keras.distribution import installed


@final
class _Refusal:
    """Stands where Keras looks for a distribution, and is asked where a new variable goes."""

    def get_variable_layout(self, variable: Any) -> Any:
        raise UsageError(
            "A function that makes a data set makes no variables. Received: a new variable "
            f"'{variable.path}' in it. The function runs on every worker, so there would be one of "
            "them in each, and none on the servers. Make the variable, or the layer that has it, "
            "before, in the strategy's scope; or compute with NumPy."
        )


@contextlib.contextmanager
def variables_refused() -> Generator[None, None, None]:
    """Refuse variables that are made in a `with` block."""
    with installed(_Refusal()):
        yield
