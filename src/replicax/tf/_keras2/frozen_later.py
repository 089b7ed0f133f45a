"""Layers that are frozen after `compile`, which Keras 2 trains as they were when it was called.

The usual program of an adversarial network compiles the discriminator, freezes it, and compiles
the generator with the discriminator behind it: each model trains what was trainable when *it* was
compiled. Keras 3 reads `trainable` at a model's first step, and would train the discriminator no
more.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Generator
from typing import Any

from replicax._keras import _compat
from replicax.tf._keras2 import around

_States = weakref.WeakKeyDictionary[Any, bool]
_when_compiled: weakref.WeakKeyDictionary[Any, _States] = weakref.WeakKeyDictionary()


def install() -> None:
    """Put it into Keras; it is called once."""
    around(_compat.Trainer, "compile", _noting)
    for method in ("fit", "train_on_batch"):
        around(_compat.JAXTrainer, method, _as_compiled)


def _noting(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def compile(self: Any, *args: Any, **options: Any) -> None:
        method(self, *args, **options)
        layers = [self, *_compat.layers_in(self)]
        _when_compiled[self] = _States({layer: layer.trainable for layer in layers})

    return compile


def _as_compiled(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def train(self: Any, *args: Any, **options: Any) -> Any:
        with _states(_when_compiled.get(self, _States())):
            return method(self, *args, **options)

    return train


@contextlib.contextmanager
def _states(then: _States) -> Generator[None, None, None]:
    """Give layers the `trainable` that they had, and afterwards the one that they have."""
    now = {layer: layer.trainable for layer, was in then.items() if layer.trainable != was}
    for layer in now:
        _compat.set_trainable(layer, then[layer])
    try:
        yield
    finally:
        for layer, value in now.items():
            _compat.set_trainable(layer, value)
