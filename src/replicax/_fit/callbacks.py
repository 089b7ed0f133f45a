"""Keras' callbacks where several workers train together: one of them writes and prints.

Each seam asks for the workers of the model when it is called, and changes nothing for one worker.
Our own callbacks are in `callbacks`.
"""

from __future__ import annotations

import functools
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras

from replicax._keras import _compat, workers
from replicax._keras.distribution import installed

_WRITERS = {
    "ModelCheckpoint": [_compat.SAVING],
    "BackupAndRestore": [_compat.SAVING],
    "CSVLogger": ["on_train_begin", "on_epoch_end", "on_train_end"],
}


def install() -> None:
    """Put the seams into Keras' callbacks; a second call changes nothing."""
    _compat.wrap(_compat.CallbackList, "__init__", _listed)
    for name, methods in _WRITERS.items():
        for method in methods:
            _compat.wrap(getattr(keras.callbacks, name), method, by_the_chief)
    board = keras.callbacks.TensorBoard
    for method in [name for name in vars(board) if name.startswith("on_")]:
        _compat.wrap(board, method, by_the_chief)
    _compat.wrap(board, "set_model", _told_to_all)
    _compat.wrap(keras.callbacks.BackupAndRestore, "on_train_end", _when_all_have_ended)
    _compat.wrap(keras.callbacks.BackupAndRestore, _compat.LOADING, _as_the_chief_sees_it)


def by_the_chief(original: Callable[..., Any]) -> Callable[..., Any]:
    """What only the chief does; others return at once."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        channel = workers.channel_of(_compat.model_of(self))
        if not channel.is_chief:
            return None
        if channel.size == 1:
            return original(self, *args, **kwargs)
        # What Keras makes meanwhile, to look at it, is no variable of the workers: when it saves an
        # optimizer it makes another one, and only here.
        with installed(None):
            return original(self, *args, **kwargs)

    return method


def _told_to_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """All know the model, but only the chief opens files."""

    @functools.wraps(original)
    def set_model(self: Any, model: Any) -> None:
        is_chief = workers.channel_of(model).is_chief
        method = original if is_chief else keras.callbacks.Callback.set_model
        method(self, model)

    return set_model


def _listed(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, callbacks: Any = None, *args: Any, **kwargs: Any) -> None:
        is_chief = workers.channel_of(kwargs.get("model")).is_chief
        if kwargs.get("verbose") == "auto" and not is_chief:
            kwargs = {**kwargs, "verbose": 0, "add_progbar": False}
        given = list(callbacks) if isinstance(callbacks, (list, tuple)) else callbacks
        if isinstance(given, list):
            # First what wants to see the state before other callbacks change it.
            given.sort(key=lambda callback: not getattr(callback, "comes_first", False))
        original(self, given, *args, **kwargs)

    return init


def _when_all_have_ended(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_train_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        channel = workers.channel_of(_compat.model_of(self))
        channel.barrier("Keras' BackupAndRestore")
        return original(self, *args, **kwargs) if channel.is_chief else None

    return on_train_end


def _as_the_chief_sees_it(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(self: Any) -> Any:
        channel = workers.channel_of(_compat.model_of(self))
        if channel.size == 1:
            return original(self)
        paths = _compat.backup_paths(self)
        files = [_bytes_of(path) for path in paths]
        seen = channel.exchange("Keras' BackupAndRestore", [zlib.crc32(file) for file in files])
        if all(one == seen[0] for one in seen):
            return original(self)
        of_chief = [channel.from_chief("Keras' BackupAndRestore", file) for file in files]
        with tempfile.TemporaryDirectory() as folder:
            copies = [str(Path(folder, Path(path).name)) for path in paths]
            for copy, file in zip(copies, of_chief, strict=True):
                if file:
                    Path(copy).write_bytes(file)
            _compat.set_backup_paths(self, copies)
            try:
                return original(self)
            finally:
                _compat.set_backup_paths(self, paths)

    return load


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
