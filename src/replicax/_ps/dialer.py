"""How members of a cluster are reached: with its secret, for a run, and encrypted if so set."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, final

from replicax._ps.encryption import client_context
from replicax._ps.wire import Link

PATIENCE = 10.0  # seconds until a connection stands


@final
@dataclass(frozen=True)
class Dialer:
    """Connects to members.

    Args:
        secret: What the cluster's members know.
        run: The name of the run; each coordinator has its own.
        hello: Who this is.
        settings: What a member is told that may not have begun this run; None to tell nothing.
    """

    secret: bytes = field(repr=False)
    run: str
    hello: dict[str, Any]
    settings: bytes | None = field(default=None, repr=False)

    @property
    def bare(self) -> Dialer:
        """One that tells nothing."""
        return dataclasses.replace(self, settings=None)

    def __call__(self, addresses: Sequence[str]) -> Link:
        """A link to the member that listens there."""
        link = Link.connect(
            addresses,
            self.secret,
            hello={**self.hello, "run": self.run},
            timeout=PATIENCE,
            tls=client_context(),
        )
        if self.settings is not None:
            try:
                link.call("configure", {}, [self.settings])
            except BaseException:
                link.close()
                raise
        return link
