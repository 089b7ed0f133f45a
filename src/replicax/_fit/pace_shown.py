"""Where the figures of `fit` are shown: behind the time per step, in the line of Keras' bar.

They are not added to the logs, so that a `History` is what Keras' own would be; a callback that
wants them asks `pace_of`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import keras

from replicax._control import current
from replicax._keras import _compat
from replicax._keras.pace import Figures, Members, Pace, pace_of

NAMES = frozenset(one.name for one in fields(Figures))


def install() -> None:
    """Put the seams into Keras' list of callbacks; a second call changes nothing."""
    _compat.wrap(_compat.CallbackList, "on_epoch_begin", _epoch_begins)
    _compat.wrap(_compat.CallbackList, "on_test_begin", _validation_begins)
    _compat.wrap(_compat.CallbackList, "on_epoch_end", _epoch_ends)


def _paced(callbacks: Any) -> Pace | None:
    """The pace of the model of a list of callbacks, if it is one of a strategy."""
    model = _compat.model_of(callbacks)
    return None if _compat.strategy_of(model) is None else pace_of(model)


def _epoch_begins(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_epoch_begin(self: Any, epoch: int, logs: Any = None) -> None:
        original(self, epoch, logs)
        pace = _paced(self)
        if pace is not None:
            self._replicax_in_epoch = True
            pace.begin()
            for callback in self.callbacks:
                if isinstance(callback, keras.callbacks.ProgbarLogger) and callback.progbar:
                    _compat.add_to_bar(callback.progbar, functools.partial(_said, pace), NAMES)

    return on_epoch_begin


def _validation_begins(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_test_begin(self: Any, logs: Any = None) -> None:
        pace = _paced(self)
        # An `evaluate` that a callback calls has a list of its own.
        if pace is not None and getattr(self, "_replicax_in_epoch", False):
            pace.end()
        original(self, logs)

    return on_test_begin


def _epoch_ends(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> None:
        pace = _paced(self)
        if pace is not None:
            self._replicax_in_epoch = False
            logs = _compat.numbers_of(logs)  # as Keras does next: now all steps have ended
            pace.end()
        original(self, epoch, logs)

    return on_epoch_end


def _said(pace: Pace) -> str:
    figures = str(pace.figures())
    return f" · {figures}" if figures else ""


def paced(model: Any, kind: str, distribution: Any) -> Pace:
    """What the step function of a model counts by; only training is looked at.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        distribution: Knows of its workers.
    """
    pace = pace_of(model) if kind == "train" else Pace()
    if distribution.members is not None:
        pace.members = distribution.members
    elif distribution.topology.num_processes > 1:
        pace.members = lambda: Members(lateness=current().lateness())
        pace.others = lambda: current().waited()
    return pace
