"""Subclasses of Keras' `CallbackList` and of its callbacks that write files.

Callbacks get these classes in `set_model`; their methods depend on the model's strategy and its
workers. Our own callbacks are in `callbacks`.

Keras converts the logs of every step to numbers, which waits for the step. Here logs become numbers
when a callback reads them, and the progress bar is called only when it draws. The bar also shows
the throughput, behind the time per step: in the logs it would change the `History`.
"""

from __future__ import annotations

import functools
import tempfile
import time
import types
import weakref
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import keras

from replicax._fit.destinations import files_noted, refuse_unwritable
from replicax._fit.figures import Figures
from replicax._fit.replica_steps import step_functions_of
from replicax._fit.steps import Throughput, throughput_of
from replicax._keras import _compat, workers
from replicax._keras.distribution import with_distribution

if TYPE_CHECKING:
    from replicax._core.channel import Channel

_FIGURES = frozenset(one.name for one in fields(Figures))
_draw_next: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()


def install() -> None:
    _compat.patch(keras.callbacks.Callback, "set_model", _with_model_methods)


def _with_model_methods(original: Callable[..., Any], self: Any, model: Any) -> None:
    _adopt(self, model)
    original(self, model)


def _adopt(callback: Any, model: Any) -> None:
    """Change the class of a callback, and of callbacks in a list, to ours."""
    if isinstance(callback, _compat.CallbackList) or workers.channel_of(model).size > 1:
        callback.__class__ = _strategy_class(type(callback))
    if isinstance(callback, StrategyCallbackList):
        callback.throughput = None if _compat.strategy_of(model) is None else throughput_of(model)
        _compat.use_one_thread(callback)
        # First the callbacks that must see the state before others change it.
        callback.callbacks.sort(key=lambda one: not getattr(one, "comes_first", False))
        for one in callback.callbacks:
            _adopt(one, model)


class StrategyCallbackList(_compat.CallbackList):
    """Keras' `CallbackList`; for a model without a strategy it only checks the files."""

    #: The throughput of the model, if it is one of a strategy.
    throughput: Throughput | None = None
    _is_in_epoch = False
    #: For each batch hook: the callbacks that define it, and the progress bars among them.
    _listeners: Mapping[tuple[str, int], tuple[list[Any], list[Any]]] = types.MappingProxyType({})

    @property
    def _channel(self) -> Channel:
        return workers.channel_of(_compat.model_of(self))

    def set_params(self, params: Any) -> None:
        """Take the parameters of a loop; only the chief shows progress."""
        if params and params.get("verbose") == "auto" and not self._channel.is_chief:
            params = {**params, "verbose": 0}
            bar = keras.callbacks.ProgbarLogger
            self.callbacks = [one for one in self.callbacks if type(one) is not bar]
        super().set_params(params)

    def on_train_begin(self, logs: Any = None) -> None:
        """Refuse to begin if a file cannot be written."""
        refuse_unwritable(self.callbacks, self._channel)
        super().on_train_begin(logs)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Start the timing of an epoch."""
        super().on_epoch_begin(epoch, logs)
        self._listeners = {}
        throughput = self.throughput
        if throughput is not None:
            self._is_in_epoch = True
            throughput.begin()
            text = functools.partial(_figures_text, throughput)
            for callback in self.callbacks:
                if isinstance(callback, keras.callbacks.ProgbarLogger) and callback.progbar:
                    _compat.add_to_bar(callback.progbar, text, _FIGURES)

    def on_test_begin(self, logs: Any = None) -> None:
        """Exclude validation from the time of the epoch."""
        self._listeners = {}
        # An `evaluate` called by a callback has its own list.
        if self.throughput is not None and self._is_in_epoch:
            self.throughput.end()
        super().on_test_begin(logs)

    def on_predict_begin(self, logs: Any = None) -> None:
        self._listeners = {}
        super().on_predict_begin(logs)

    def on_test_end(self, logs: Any = None) -> None:
        """Let workers compare their state at the next step."""
        self._end_epoch()
        super().on_test_end(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End the time of an epoch; let workers compare their state at the next step."""
        self._end_epoch()
        if self.throughput is not None:
            self._is_in_epoch = False
            logs = _compat.numbers_of(logs)  # waits for all steps; Keras does it next anyway
            self.throughput.end()
        with files_noted(self.callbacks):
            super().on_epoch_end(epoch, logs)

    def _end_epoch(self) -> None:
        for steps in step_functions_of(_compat.model_of(self)):
            steps.end_epoch()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._call_batch_hook("on_train_batch_end", batch, logs, "on_batch_end")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._call_batch_hook("on_test_batch_end", batch, logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._call_batch_hook("on_predict_batch_end", batch, logs)

    def _call_batch_hook(self, hook: str, batch: int, logs: Any, *older: str) -> None:
        """Call a hook of the callbacks that define it; a progress bar only if it draws now."""
        throughput, plain = self.throughput, getattr(super(), hook)
        if throughput is None:
            return plain(batch, logs)
        chosen = hook, len(self.callbacks)  # a callback may be added during a loop
        if chosen not in self._listeners:
            found = [one for one in self.callbacks if not _compat.has_defaults(one, (hook, *older))]
            bars = [one for one in found if isinstance(one, keras.callbacks.ProgbarLogger)]
            self._listeners = {**self._listeners, chosen: (found, bars)}
        listeners, bars = self._listeners[chosen]
        drawing = [one for one in bars if _draws(one, throughput)]
        if len(bars) == len(listeners):
            return plain(batch, logs) if drawing else None
        lazy = BatchLogs(logs)
        with files_noted(listeners):
            for callback in listeners:
                if callback not in bars or callback in drawing:
                    getattr(callback, hook)(batch, logs=lazy)
        return None


def _draws(logger: Any, throughput: Throughput) -> bool:
    """Whether a progress bar draws at this batch: Keras' draws 20 times a second."""
    bar = logger.progbar
    # Without a target it must count all batches.
    if bar is not None and logger.target is not None:
        now = time.monotonic()
        if logger.verbose != 1 or now < _draw_next.get(bar, now):
            return False
        _draw_next[bar] = now + bar.interval
    throughput.mark()
    return True


def _figures_text(throughput: Throughput) -> str:
    figures = str(throughput.figures())
    return f" · {figures}" if figures else ""


@final
class BatchLogs(dict[str, Any]):
    """The logs of a step as a dict, whose values become numbers at the first read."""

    def __init__(self, logs: Any) -> None:
        super().__init__(_flat(logs or {}))
        self._is_read = False

    def read(self) -> None:
        """Wait for the step, and convert its logs to numbers."""
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


_READ = ("__eq__", "__ne__", "__getitem__", "__iter__", "__or__", "__ror__", "__repr__")
_CHANGE = ("__delitem__", "__ior__", "__setitem__", "clear", "pop", "popitem", "setdefault")
for _name in (*_READ, *_CHANGE, "copy", "get", "items", "update", "values"):
    setattr(BatchLogs, _name, _reading(_name))


# Callbacks of several workers: the chief writes.


def _chief_only(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the method on the chief only."""
    channel = workers.channel_of(_compat.model_of(self))
    if not channel.is_chief:
        return None
    if channel.size == 1:
        return original(self, *args, **kwargs)
    # Keras makes another optimizer when it saves one: its variables exist on the chief only, so
    # they must not belong to the strategy.
    with with_distribution(None):
        return original(self, *args, **kwargs)


def _chief_opens_files(original: Callable[..., Any], self: Any, model: Any) -> None:
    """Set the model on all workers, but open files on the chief only."""
    is_chief = workers.channel_of(model).is_chief
    (original if is_chief else keras.callbacks.Callback.set_model)(self, model)


def _after_barrier(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    channel = workers.channel_of(_compat.model_of(self))
    channel.barrier("Keras' BackupAndRestore")
    return original(self, *args, **kwargs) if channel.is_chief else None


def _from_chiefs_files(original: Callable[..., Any], self: Any) -> Any:
    channel = workers.channel_of(_compat.model_of(self))
    if channel.size == 1:
        return original(self)
    paths = _compat.backup_paths(self)
    files = [_bytes_of(path) for path in paths]
    found = channel.exchange("Keras' BackupAndRestore", list(map(zlib.crc32, files)))
    if all(one == found[0] for one in found):
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


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _all_chief_only(kind: type) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys((name for name in vars(kind) if name.startswith("on_")), _chief_only)


_CHANGES: dict[Any, dict[str, Callable[..., Any]]] = {
    keras.callbacks.ModelCheckpoint: {_compat.SAVING: _chief_only},
    keras.callbacks.BackupAndRestore: {
        _compat.SAVING: _chief_only,
        _compat.LOADING: _from_chiefs_files,
        "on_train_end": _after_barrier,
    },
    keras.callbacks.CSVLogger: _all_chief_only(keras.callbacks.CSVLogger),
    keras.callbacks.TensorBoard: {
        "set_model": _chief_opens_files,
        **_all_chief_only(keras.callbacks.TensorBoard),
    },
}
_OURS: dict[type, type] = {
    _compat.CallbackList: StrategyCallbackList,
    **{
        kind: type(
            kind.__name__,
            (kind,),
            {name: _compat.calling(one, getattr(kind, name)) for name, one in changes.items()},
        )
        for kind, changes in _CHANGES.items()
    },
}


@functools.cache
def _strategy_class(kind: type) -> type:
    """The class of a callback with our methods before Keras' in the method resolution order.

    A user's class comes first, and its `super()` finds ours.
    """
    base = next((base for base in _OURS if issubclass(kind, base)), None)
    if base is None or issubclass(kind, _OURS[base]):
        return kind
    if kind is base:
        return _OURS[base]
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    bases = kind, _OURS[base]
    return types.new_class(kind.__name__, bases, exec_body=lambda body: body.update(names))
