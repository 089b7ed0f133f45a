"""What callbacks hear of single batches: no more than somebody reads, and no sooner.

Keras makes numbers of the logs of every step, for which it waits for the step; in a thread of its
own, if there is only progress to be shown. Here logs become numbers when a callback reads them, and
the progress bar hears of a batch as often as it draws.
"""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable
from typing import Any, final

import keras

from replicax._keras import _compat
from replicax._keras.pace import pace_of

_draw_next: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def install() -> None:
    """Put the seams into Keras' callbacks; a second call changes nothing."""
    for kind in ("train", "test", "predict"):
        hook = f"on_{kind}_batch_end"
        _compat.wrap(_compat.CallbackList, hook, functools.partial(_heard_of, hook=hook))


def _heard_of(original: Callable[..., Any], hook: str) -> Callable[..., Any]:
    hooks = [hook, "on_batch_end"] if hook == "on_train_batch_end" else [hook]

    @functools.wraps(original)
    def on_batch_end(self: Any, batch: int, logs: Any = None) -> None:
        if _compat.strategy_of(_compat.model_of(self)) is None:
            return original(self, batch, logs)
        hearers = [one for one in self.callbacks if not _compat.has_defaults(one, hooks)]
        bars = [one for one in hearers if isinstance(one, keras.callbacks.ProgbarLogger)]
        if len(bars) == len(hearers):
            return original(self, batch, logs) if any(map(_draws, bars)) else None
        told = BatchLogs(logs)
        for callback in hearers:
            if callback not in bars or _draws(callback):
                getattr(callback, hook)(batch, logs=told)
        return None

    return on_batch_end


def _draws(logger: Any) -> bool:
    """Whether a progress bar wants to hear of this batch: Keras' draws 20 times a second."""
    bar = logger.progbar
    # Without a target it counts batches, to know how many there are.
    if bar is not None and logger.target is not None:
        now = time.monotonic()
        if logger.verbose != 1 or now < _draw_next.get(bar, now):
            return False
        _draw_next[bar] = now + bar.interval
    pace_of(_compat.model_of(logger)).mark()
    return True


@final
class BatchLogs(dict[str, Any]):
    """The logs of a batch as a dict of numbers, which are made when one is looked at.

    Args:
        logs: What the step returned: arrays, which may not be computed yet.
    """

    def __init__(self, logs: Any) -> None:
        super().__init__(_flat(logs or {}))
        self._is_read = False

    def read(self) -> None:
        """Wait for the step, and make numbers of its logs."""
        if not self._is_read:
            self._is_read = True
            super().update(_compat.numbers_of(_flat(dict.items(self))))


def _flat(logs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in sorted(dict(logs).items()):
        found.update(_flat(value) if isinstance(value, dict) else {name: value})
    return found


def _reading(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    @functools.wraps(plain)
    def method(self: BatchLogs, *args: Any, **kwargs: Any) -> Any:
        self.read()
        return plain(self, *args, **kwargs)

    return method


_READ = "__eq__ __ne__ __getitem__ __iter__ __or__ __ror__ __repr__ copy get items values"
_CHANGE = "__delitem__ __ior__ __setitem__ clear pop popitem setdefault update"
for _name in f"{_READ} {_CHANGE}".split():
    setattr(BatchLogs, _name, _reading(_name))
