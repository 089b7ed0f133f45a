"""Refuse classes that override a method which Keras 2 calls and Keras 3 does not.

Such a class would silently train by the method it inherits. It is checked when it is made; classes
that were made before are checked by `compile`, by `fit`, and when an optimizer is applied under a
strategy.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax.tf._keras2 import around

RULE = "update_step(self, gradient, variable, learning_rate)"
_GRADIENTS = "apply(self, grads, trainable_variables=None)"
_SLOTS = "build(self, variables)` with calls of `add_variable_from_reference"
_RULES = (
    "_resource_apply_dense", "_resource_apply_sparse", "_resource_apply_sparse_duplicate_indices",
    "_apply_dense", "_apply_sparse", "_apply_sparse_duplicate_indices", "_apply_sparse_shared",
    "_prepare", "_prepare_local", "_fallback_apply_state", "_finish", "_update_step_xla",
    "get_updates",
)  # fmt: skip
_OF_GRADIENTS = (
    "_compute_gradients", "compute_gradients", "get_gradients", "_get_gradients",
    "_aggregate_gradients", "aggregate_gradients", "_transform_gradients",
    "_transform_unaggregated_gradients", "_distributed_apply", "_distributed_apply_gradients_fn",
    "_internal_apply_gradients",
)  # fmt: skip
# Methods of an optimizer that nobody calls, and the one to override instead.
UNCALLED = {
    **dict.fromkeys(_RULES, RULE),
    **dict.fromkeys(_OF_GRADIENTS, _GRADIENTS),
    **dict.fromkeys(("_create_slots", "_create_vars", "_create_all_weights"), _SLOTS),
    "_transform_loss": "scale_loss(self, loss)",
}
# Those that only a program itself calls: `fit` does not.
UNCALLED_IN_FIT: dict[str, str] = dict.fromkeys(("apply_gradients", "minimize"), _GRADIENTS)
# With one of these of its own, an optimizer is for Keras 3, and may hold the others besides.
ENOUGH = {"update_step", "apply", "_backend_update_step"}


def install() -> None:
    """Put the checks into Keras' classes; it is called once."""
    for kind in (_compat.BaseOptimizer, keras.metrics.Metric):
        _check_subclasses(kind)
    around(_compat.BaseOptimizer, "apply", _behind(_check_applied))
    around(_compat.Trainer, "compile", _behind(_check_compiled))
    for kind in ("train", "test", "predict"):
        around(_compat.JAXTrainer, f"make_{kind}_function", _behind(_check_metrics))


def _check_subclasses(owner: Any) -> None:
    def init_subclass(cls: type, **options: Any) -> None:
        super(owner, cls).__init_subclass__(**options)
        refuse_uncalled(cls)

    owner.__init_subclass__ = classmethod(init_subclass)


def _behind(check: Callable[..., None]) -> Callable[..., Any]:
    """A wrapper of a method: a check of its arguments, then the method."""

    def checked(method: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
        check(self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return checked


def _check_applied(optimizer: Any, *args: Any, **kwargs: Any) -> None:
    if current_frame() is not None:
        refuse_uncalled(type(optimizer))


def _check_compiled(model: Any, *args: Any, **kwargs: Any) -> None:
    _refuse_uncalled_in_fit(keras.tree.flatten((args, kwargs)))


def _check_metrics(model: Any, *args: Any, **kwargs: Any) -> None:
    _refuse_uncalled_in_fit(model.metrics)


def refuse_uncalled(kind: type) -> None:
    """Refuse a class with a method that nobody calls."""
    if issubclass(kind, _compat.BaseOptimizer):
        _refuse(kind, UNCALLED, "nobody calls")
        _check_rule(kind)
    if issubclass(kind, keras.metrics.Metric):
        _call_older_reset(kind)
        _say_values(kind)


def _refuse_uncalled_in_fit(objects: Iterable[Any]) -> None:
    """Refuse optimizers and metrics of a model with methods that `fit` does not call."""
    for one in objects:
        refuse_uncalled(type(one))
        if isinstance(one, _compat.BaseOptimizer):
            _refuse(type(one), UNCALLED_IN_FIT, "`fit` does not call")


def _own(kind: type) -> list[type]:
    return [k for k in kind.__mro__ if k.__module__.partition(".")[0] not in _LIBRARIES]


_LIBRARIES = ("builtins", "keras", "replicax")


def _refuse(kind: type, hooks: Mapping[str, str], who: str) -> None:
    names = {name for one in _own(kind) for name in vars(one)}
    found = sorted(names & set(hooks))
    if found and not names & ENOUGH:
        raise UsageError(
            f"{kind.__name__}.{found[0]} has no effect: {who} it. Override `{hooks[found[0]]}`. "
            "See docs/tf.md#methods-that-keras-3-never-calls."
        )


def _say_values(kind: Any) -> None:
    """Let `result` of a metric give the value of a variable that it returns."""
    original = vars(kind).get("result")
    if not inspect.isfunction(original) or hasattr(original, "gives_values"):
        return

    @functools.wraps(original)
    def result(self: Any) -> Any:
        return keras.tree.map_structure(
            lambda one: one.value if isinstance(one, keras.Variable) else one, original(self)
        )

    vars(result)["gives_values"] = True
    kind.result = result


def _call_older_reset(kind: Any) -> None:
    """Let `reset_state` of a metric call the `reset_states` that it has instead."""
    names = {name for one in _own(kind) for name in vars(one)}
    if "reset_states" not in names or "reset_state" in names:
        return
    within: set[int] = set()

    def reset_state(self: Any) -> None:
        if id(self) in within:  # from `super().reset_states()`
            return super(kind, self).reset_state()
        within.add(id(self))
        try:
            self.reset_states()
        finally:
            within.discard(id(self))

    kind.reset_state = reset_state


def _check_rule(kind: type) -> None:
    """Refuse an `update_step(gradient, variable)` of TensorFlow 2.11 to 2.15."""
    rule = next(
        (vars(one)["update_step"] for one in _own(kind) if "update_step" in vars(one)), None
    )
    if not inspect.isfunction(rule):
        return
    try:
        inspect.signature(rule).bind(None, None, None, None)
    except TypeError:
        raise UsageError(
            f"{kind.__name__}.update_step{inspect.signature(rule)} cannot be called: Keras 3 "
            f"passes a gradient, a variable and the learning rate. Override `{RULE}`. See "
            "docs/tf.md#methods-that-keras-3-never-calls."
        ) from None
