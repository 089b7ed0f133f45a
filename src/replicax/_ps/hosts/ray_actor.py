"""A member as a Ray actor: Ray starts its process, and restarts it when it has died.

Ray carries only the address; members talk to each other by `_net`.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Mapping
from typing import Any, final

from replicax._ps.hosts.cluster import load_starter


@final
class MemberActor:
    """Starts a member in a process of Ray, by a `module:function`, and says where it listens."""

    def __init__(
        self, starter: str, role: str, index: int, secret: bytes, settings: Mapping[str, Any]
    ) -> None:
        import ray

        # This machine's address in the cluster; a cluster of our own uses the loopback interface.
        host = ray.util.get_node_ip_address()
        self._life = secrets.token_hex(8)
        self._endpoint = load_starter(starter)(role, index, secret, settings, host=host, port=0)

    def look(self, known: str | None) -> dict[str, Any]:
        """Say where it listens; block for ever if `known` is the `life` of the last answer.

        So a pending call ends with the process, and Ray repeats it in the next process, which
        answers it.
        """
        while known == self._life:
            threading.Event().wait()
        addresses = list(self._endpoint.addresses)
        return {"life": self._life, "addresses": addresses, "pid": os.getpid()}
