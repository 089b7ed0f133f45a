"""The user's code that servers run, optimizers and constraints, by the digest of its bytes.

It comes over connections, from whoever knows the cluster's secret, and never from a file: a
snapshot only names it, and a restarted server is sent it again.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable
from typing import Any, NoReturn, final

from replicax._core.errors import ClusterError
from replicax._ps.variables.shard_optimizer import Recipe


class MissingCode(ClusterError):
    """Raised when a server needs an optimizer or a constraint that nobody has sent."""

    def __init__(self) -> None:
        super().__init__(
            "Cannot restore the snapshot: it needs an optimizer or constraint that the "
            "coordinator has not sent. Start a new run, and restore a checkpoint if you need "
            "these variables."
        )


@final
class Code:
    """The code that a server was sent."""

    def __init__(self, pickled: Iterable[bytes] = ()) -> None:
        self._held: dict[str, tuple[bytes, Any]] = {}
        for one in pickled:
            self.add(one)

    def add(self, pickled: Any) -> Any:
        """Unpickle bytes from a connection; the same bytes give the same object."""
        data = bytes(pickled)
        digest = digest_of(data)
        if digest not in self._held:
            self._held[digest] = data, pickle.loads(data)
        return self._held[digest][1]

    def digest_of(self, value: Any) -> str | None:
        """The digest of an object from `add`; None for None."""
        found = (digest for digest, (_, held) in self._held.items() if held is value)
        return None if value is None else next(found)

    def recipe(self, digest: str) -> Recipe:
        """An optimizer, or a function that raises MissingCode instead of making it."""
        return self._held[digest][1] if digest in self._held else Recipe(_Missing, {})

    def constraint(self, digest: str | None) -> Any:
        """A constraint, or a function that raises MissingCode when called; None for None."""
        if digest is None:
            return None
        return self._held[digest][1] if digest in self._held else _Missing.from_config

    def pickled(self) -> list[bytes]:
        """All of it, to be sent to another server."""
        return [data for data, _ in self._held.values()]


def digest_of(pickled: bytes) -> str:
    """The name of some code."""
    return hashlib.sha256(pickled).hexdigest()


@final
class _Missing:
    @classmethod
    def from_config(cls, _: Any) -> NoReturn:
        raise MissingCode
