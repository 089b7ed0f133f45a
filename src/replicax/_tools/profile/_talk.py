"""Callbacks of Keras, prints and logs, as a part of a step that can be measured."""

from __future__ import annotations

import builtins
import contextlib
import functools
import logging
from collections.abc import Callable, Generator
from typing import Any

from replicax._core.event_files import EventFile
from replicax._core.events import timed
from replicax._fit.callback_list import StrategyCallbackList
from replicax._keras import _compat
from replicax._tools.profile._split import CALLBACKS

_OF_KERAS = ("on_train_batch_begin", "on_train_batch_end", "on_epoch_begin", "on_epoch_end")


@contextlib.contextmanager
def talk_timed() -> Generator[None, None, None]:
    """Report callbacks, prints, logs and summaries in a `with` block to the recorder."""
    places = [
        (builtins, "print"),
        (logging.Logger, "handle"),
        (EventFile, "add"),
        *((_where(name), name) for name in _OF_KERAS),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name in places]
    try:
        for owner, name, original in before:
            setattr(owner, name, _timed(original))
        yield
    finally:
        for owner, name, original in before:
            setattr(owner, name, original)


def _where(hook: str) -> type:
    """The class whose method Keras' loops call: ours if it does more than Keras' own."""
    return StrategyCallbackList if hook in vars(StrategyCallbackList) else _compat.CallbackList


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return timed(CALLBACKS, functools.partial(original, **kwargs), *args)

    return call
