"""Errors between two ends of a connection, as the caller sees them."""

from __future__ import annotations

from replicax._core.errors import ClusterError


class RemoteError(ClusterError, RuntimeError):
    """Raised by `Link.call` when the handler on the other side raised. The connection goes on.

    `kind` is the name of the exception's class, such as `KeyError`.
    """

    def __init__(self, kind: str, text: str, op: str = "", peer: str = "") -> None:
        super().__init__(kind, text, op, peer)  # so that it can be pickled
        self.kind = kind
        self.text = text
        self.op = op
        self.peer = peer

    def __str__(self) -> str:
        return (
            f"The other side must be able to do what it is asked for. Received: {self.kind} from "
            f"{self.peer or 'it'}, asked for {self.op!r}. The connection goes on. Mend what it "
            f"says: {self.text}"
        )


class LinkLost(ClusterError, ConnectionError):
    """Raised when the other side cannot be reached, or the connection broke or was closed."""
