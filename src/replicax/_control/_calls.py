"""The calls that wait for an answer of the hub: each has a name, a number, and a box."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from queue import SimpleQueue
from typing import Any, final

Key = tuple[str, int]


@final
class Calls:
    """Numbers the calls of each name, and brings answers to those who wait, in any thread."""

    def __init__(self) -> None:
        self.completed = 0
        self.waited = 0.0  # seconds in which others were waited for
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        # An answer may come before somebody waits for it, so both make the box.
        self._boxes: defaultdict[Key, SimpleQueue[Any]] = defaultdict(SimpleQueue)
        self._refused: Exception | None = None

    def begin(self, name: str) -> Key:
        """Give the next call of this name. Raises what `refuse` was given."""
        with self._lock:
            if self._refused:
                raise self._refused
            self._numbers[name] += 1
            return name, self._numbers[name]

    def wait(self, key: Key) -> Any:
        """Wait for the answer to a call. Raises what `refuse` was given."""
        with self._lock:
            box = self._boxes[key]
            if self._refused:
                box.put(self._refused)
        begin = time.monotonic()
        answer = box.get()
        with self._lock:
            self._boxes.pop(key, None)
            self.completed += 1
            self.waited += time.monotonic() - begin
        if isinstance(answer, Exception):
            raise answer
        return answer

    def answer(self, key: Key, answer: Any) -> None:
        """Give the answer to a call."""
        with self._lock:
            self._boxes[key].put(answer)

    def is_answered(self, key: Key) -> bool:
        """Whether the answer to a call is there."""
        with self._lock:
            return key in self._boxes and not self._boxes[key].empty()

    def forget(self, key: Key) -> None:
        """Drop the answer to a call that nobody waits for."""
        with self._lock:
            self._boxes.pop(key, None)

    def refuse(self, error: Exception) -> None:
        """From now on, let all calls raise this, also those that wait; the first one counts."""
        with self._lock:
            self._refused = self._refused or error
            for box in self._boxes.values():
                box.put(self._refused)
