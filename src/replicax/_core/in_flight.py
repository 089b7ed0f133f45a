"""The steps in flight: on devices that could dead-lock, one at a time, whoever starts it.

XLA:CPU runs the devices of a process on one thread pool. If several steps are in flight, threads
waiting in one step's all-reduce can leave none for the other devices. So a step waits for the one
before it, be that of another function, of another model or of another strategy.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any, final

import jax


def may_deadlock(devices: Collection[jax.Device]) -> bool:
    """Whether steps that run ahead of each other on these devices can dead-lock."""
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"


@final
class Queue:
    """What the next step on a set of devices waits for: see `queue_of`."""

    def __init__(self, *, guards: bool) -> None:
        self._guards = guards
        self._token: Any = None
        #: The queues of all sets that share a device with this one.
        self.near: tuple[Queue, ...] = (self,) if guards else ()

    def wait(self) -> None:
        """Wait until no step is in flight on any of the devices.

        A step that has failed is told of here, once.
        """
        for queue in self.near:
            token, queue._token = queue._token, None
            if token is not None:
                token.block_until_ready()

    def put(self, token: Any) -> None:
        """Note that a step was started.

        The token is an array that it computes and that no later one takes over; None if it computes
        none.
        """
        if self._guards:
            self._token = token


_free = Queue(guards=False)
_queues: dict[frozenset[jax.Device], Queue] = {}
_lock = threading.Lock()


def queue_of(devices: Collection[jax.Device]) -> Queue:
    """The queue of all steps on these devices: the same for whoever asks."""
    if not may_deadlock(devices):
        return _free
    key = frozenset(devices)
    with _lock:
        if key not in _queues:
            made = _queues[key] = Queue(guards=True)
            near = [queue for others, queue in _queues.items() if others & key]
            made.near = tuple(near)
            for queue in near:
                if queue is not made:
                    queue.near = (*queue.near, made)
        return _queues[key]
