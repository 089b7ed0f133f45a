"""The calls that wait for an answer of the hub, by name and number."""

from __future__ import annotations

import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any, final

Key = tuple[str, int]


@final
class Calls:
    """Numbers the calls of each name, and delivers answers to waiting threads."""

    def __init__(self) -> None:
        self.completed = 0
        self.waited = 0.0  # seconds of waiting for other workers
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._boxes: dict[Key, SimpleQueue[Any]] = {}
        self._refused: Exception | None = None

    def begin(self, name: str, *, has_answer: bool = True) -> Key:
        """Begin the next call of this name. Raises the error of `refuse`."""
        with self._lock:
            if self._refused:
                raise self._refused
            self._numbers[name] += 1
            key = name, self._numbers[name]
            if has_answer:
                self._box(key)
            return key

    def wait(self, key: Key) -> Any:
        """Wait for the answer to a call. Raises the error of `refuse`."""
        with self._lock:
            box = self._box(key)
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

    def answer(self, key: Key, answer: Any, *, may_be_early: bool = False) -> None:
        """Deliver the answer to a call, unless the call was forgotten.

        With `may_be_early`, the answer is kept for a call that has not begun here.
        """
        with self._lock:
            if may_be_early or key in self._boxes:
                self._box(key).put(answer)

    def is_answered(self, key: Key) -> bool:
        """Whether the answer to a call has arrived."""
        with self._lock:
            return key in self._boxes and not self._boxes[key].empty()

    def _box(self, key: Key) -> SimpleQueue[Any]:
        return self._boxes.setdefault(key, SimpleQueue())

    def forget(self, key: Key) -> None:
        """Drop the answer to a call, now or when it arrives."""
        with self._lock:
            self._boxes.pop(key, None)

    def refuse(self, error: Exception) -> None:
        """Let all calls raise `error` from now on, also waiting ones; the first error counts."""
        with self._lock:
            self._refused = self._refused or error
            for box in self._boxes.values():
                box.put(self._refused)
