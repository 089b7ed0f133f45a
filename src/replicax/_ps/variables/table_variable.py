"""A Keras variable for a table whose rows have ids, and which is never read as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._program.capture import current_recorder
from replicax._ps.variables.server_variable import ServerVariable, rehome


class TableHome(Protocol):
    """The place of the rows. As a variable's home it is empty: `read` gives no rows."""

    padding: int | None

    def read_rows(self, rows: np.ndarray) -> np.ndarray:
        """The rows of ids; for an id without one, its initial row."""
        ...

    def statistics(self) -> dict[str, int]:
        """Counters."""
        ...

    def export(self) -> dict[str, np.ndarray]:
        """All rows with their ids and slots."""
        ...

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over an export."""
        ...


class TableVariable(ServerVariable):
    """A table of rows by id, as one of the weights of a layer: of shape (0, …).

    Its gradients are those of the rows that were looked up; optimizers work where the rows are.
    """

    is_table = True
    is_dynamic = True

    @property
    def table(self) -> Any:
        """The home of its rows: a `TableHome`."""
        return self._home

    def lookup_rows(self, ids: Any) -> Any:
        """The rows of ids; zeros where there is no id."""
        return self.find_rows(ids)[0]

    def find_rows(self, ids: Any) -> tuple[Any, Any]:
        """The rows of ids, and for which ids there is one, as opposed to padding.

        Compiled code that does not run on a worker cannot ask for rows: it is refused.
        """
        if not np.issubdtype(ids.dtype, np.integer):
            raise UsageError(
                f"What is looked up in a dynamic table is an integer. Received: ids of type "
                f"{ids.dtype}. Rounding would make one of several. Give the input that type: "
                "`keras.Input(shape, dtype='int64')`; make ids of text by `rx.layers.hash_ids`."
            )
        recorder = current_recorder()
        if recorder is not None:
            return recorder.find(self, ids)
        if isinstance(ids, Tracer):
            if _compat.in_symbolic_scope():
                shape = (*ids.shape, *self._whole[1:])
                return jnp.zeros(shape, self.dtype), jnp.ones(ids.shape, bool)
            raise _compiled_elsewhere(self)
        wanted = np.asarray(ids)
        padding = self.table.padding
        there = np.ones(wanted.shape, bool) if padding is None else wanted != padding
        rows = np.zeros((*wanted.shape, *self._whole[1:]), np.dtype(self.dtype))
        rows[there] = self.table.read_rows(wanted[there].astype(np.int64))
        return jnp.asarray(rows), jnp.asarray(there)


def become_table(variable: Any, home: TableHome) -> None:
    """Let a variable of shape (0, …) stand for the table at a home."""
    rehome(variable, home, TableVariable)


def _compiled_elsewhere(variable: Any) -> UsageError:
    return UsageError(
        "The rows of a dynamic table are looked up by the workers of a ParameterServerStrategy, "
        f"or here without compiling. Received: table '{variable.path}' in compiled code of this "
        "process. An array in its place would have no room for ids that are new. Make the model "
        "in the scope of `rx.ParameterServerStrategy` (to debug, with engine='threads'), or turn "
        "a trained one into a plain one by `rx.layers.to_plain`."
    )
