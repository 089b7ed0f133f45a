"""Models that share layers or an optimizer, as adversarial networks do: what `compile` settles.

The usual program compiles the discriminator, freezes it, and compiles the generator with the
discriminator behind it, often with the same optimizer. In Keras 2 each model trains the layers that
were trainable when *it* was compiled, and an optimizer keeps momenta for whatever it meets. Keras 3
reads `trainable` at a model's first step, and an optimizer refuses the variables of a second model.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator
from typing import Any

from replicax._core import seams
from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax.tf._keras2 import around

_Map = weakref.WeakKeyDictionary[Any, Any]
_when_compiled: _Map = _Map()  # by model and layer: whether it was trainable
_users: _Map = _Map()  # by optimizer and model: the model's copy; None for the optimizer itself
_alike: _Map = _Map()  # the optimizers that count together with one


def install() -> None:
    """Put it into Keras; it is called once."""
    around(_compat.Trainer, "compile", _noting)
    around(_compat.BaseOptimizer, "build", _of_other_variables)
    for method in ("fit", "train_on_batch"):
        around(_compat.JAXTrainer, method, _as_compiled)


def _noting(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> None:
    method(self, *args, **options)
    layers = [self, *_compat.layers_in(self)]
    _when_compiled[self] = _Map({layer: layer.trainable for layer in layers})
    if isinstance(getattr(self, "optimizer", None), _compat.BaseOptimizer):
        self.optimizer = _for_model(self.optimizer, self)


def _as_compiled(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    with _trainable_as(_when_compiled.get(self, {}) if seams.speaks_tensorflow else {}):
        return method(self, *args, **options)


@contextlib.contextmanager
def _trainable_as(then: Any) -> Generator[None, None, None]:
    """Give layers the `trainable` that they had, and afterwards the one that they have."""
    now = {layer: layer.trainable for layer, was in then.items() if layer.trainable != was}
    for layer in now:
        _compat.set_trainable(layer, then[layer])
    try:
        yield
    finally:
        for layer, value in now.items():
            _compat.set_trainable(layer, value)


def _for_model(optimizer: Any, model: Any) -> Any:
    """The optimizer, or for a second model one that counts and learns at the rate of the first."""
    users = _users.setdefault(optimizer, _Map())
    if model in users:
        return users[model] or optimizer
    known = set(map(id, _compat.trainable_variables(optimizer)))
    if not users and known.issubset(map(id, model.variables)):
        users[model] = None
        return optimizer
    try:
        made = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, NotImplementedError):
        # It cannot say what it was made of. If both models train, Keras refuses it.
        return optimizer
    users[model] = made
    _compat.share_counts(made, optimizer)
    together = _alike.setdefault(optimizer, weakref.WeakSet([optimizer]))
    together.add(made)
    _alike[made] = together
    return made


def _of_other_variables(method: Callable[..., Any], self: Any, /, variables: Any) -> None:
    for other in _alike.get(self, ()):
        known = set(map(id, _compat.trainable_variables(other))) if other is not self else set()
        for variable in variables:
            if id(variable) in known:
                raise UsageError(
                    f"One optimizer cannot train {variable.path!r} in two models. Compile "
                    "each model with an optimizer of its own."
                )
    method(self, variables)
