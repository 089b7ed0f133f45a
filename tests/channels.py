"""Several workers in one process: each is a thread with a channel of its own."""

import contextlib
import copy
import socket
import threading
from collections import defaultdict
from unittest import mock

from replicax._core import channel
from replicax._keras import workers

_local = threading.local()


class _Hall:
    """Where the workers meet: one list of values for each call."""

    def __init__(self, size):
        self.size = size
        self.changed = threading.Condition()
        self.values = defaultdict(dict)

    def give(self, name, index, value):
        with self.changed:
            self.values[name][index] = value
            self.changed.notify_all()

    def meet(self, name, index, value):
        with self.changed:
            self.give(name, index, value)
            if not self.changed.wait_for(lambda: len(self.values[name]) == self.size, timeout=60):
                raise TimeoutError(f"worker {index} waits at {name}")
            # Copies, as if they had travelled.
            return [copy.deepcopy(self.values[name][worker]) for worker in range(self.size)]


class FakeChannel:
    def __init__(self, hall, index):
        self._hall, self.index, self.size = hall, index, hall.size
        self.is_chief = index == 0
        self._counts = defaultdict(int)

    def exchange(self, name, value):
        self._counts[name] += 1
        return self._hall.meet((name, self._counts[name]), self.index, value)

    def offer(self, name, value):
        self._counts[name] += 1
        key = name, self._counts[name]
        self._hall.give(key, self.index, value)
        return mock.Mock(answers=lambda: self._hall.meet(key, self.index, value))

    def waited(self):
        return 0.0

    def lateness(self):
        return [0.0] * self.size

    def hosts(self):
        return [socket.gethostname()] * self.size

    def any(self, name, holds):
        return any(self.exchange(name, holds))

    def barrier(self, name):
        self.exchange(name, None)

    def from_chief(self, name, payload):
        return self.exchange(name, payload if self.is_chief else None)[0]


class _ByThread:
    """The channel of the process, which here is that of the thread that asks."""

    def __getattr__(self, name):
        return getattr(getattr(_local, "channel", None) or channel.Channel(), name)


def as_workers(size, work, *, together=True):
    """Run `work(index)` on that many workers at once; give what each returned or raised.

    Every model is one of all workers, whatever its strategy; if not `together`, as in reality.
    """
    hall, results = _Hall(size), [None] * size

    def run(index):
        _local.channel = FakeChannel(hall, index)
        try:
            results[index] = work(index)
        except BaseException as error:
            results[index] = error

    before = channel.current()
    channel.set_current(_ByThread())
    try:
        threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
        everybody = mock.patch.object(workers, "channel_of", lambda model: channel.current())
        with everybody if together else contextlib.nullcontext():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        channel.set_current(before)
    return results
