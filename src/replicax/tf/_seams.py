"""The patches of Keras by `replicax.tf`, installed after our own, with the first strategy."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable
from typing import Any, final

import jax
import jax.core
import keras
from jax.core import Tracer

from replicax._core import seams
from replicax._core.host_calls import HostCallbacks
from replicax._core.topology import default_device
from replicax._fit.step_program import model_step, step_variables
from replicax._keras import _compat
from replicax._program.compiling import compiled
from replicax._program.jaxpr import has_host_callbacks
from replicax._program.table_gradients import with_slices
from replicax.tf._keras2 import around, own_steps, uncalled
from replicax.tf._symbolic import trying_sizes


def install() -> None:
    """Put them in; it is called once."""
    uncalled.install()
    for owner, method, name in (
        (keras.layers.Layer, "__call__", "call"),
        (keras.layers.Layer, "stateless_call", "call"),
        (keras.losses.Loss, "__call__", "call"),
        (keras.losses.Loss, "__call__", "fn"),
        (keras.metrics.MeanMetricWrapper, "update_state", _compat.METRIC_FUNCTION),
    ):
        around(owner, method, functools.partial(_converting, name))
    around(keras.layers.Layer, "__call__", _building_at_once)
    for owner in (keras.Operation, keras.layers.Lambda):  # which infers its shape by itself
        around(owner, "compute_output_spec", trying_sizes)
    around(keras.layers.Layer, "compute_output_spec", _of_its_call)
    for kind in ("train", "test", "predict"):
        around(
            _compat.JAXTrainer,
            f"make_{kind}_function",
            functools.partial(_of_the_default_strategy, kind),
        )
    own_steps.install()


def _of_its_call(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The outputs of a program's own layer are what its `call` gives, as in Keras 2.

    Keras 3 trusts `compute_output_shape`, its own or a base's, which Keras 2 hardly calls: it may
    be wrong.
    """
    kind = type(self)
    modules = [getattr(f, "__module__", "") for f in (kind.call, kind.compute_output_shape)]
    if all(module.startswith(("keras.", "replicax.")) for module in modules):
        return original(self, *args, **kwargs)
    attributes = vars(self)
    before = dict(attributes)
    try:
        if not _compat.is_default(self.compute_output_shape):
            with contextlib.suppress(Exception):  # then Keras asks for the shape
                return keras.Operation.compute_output_spec(self, *args, **kwargs)
        return original(self, *args, **kwargs)
    finally:  # a value that `call` keeps is none outside of this trace
        for name in [name for name, kept in attributes.items() if isinstance(kept, Tracer)]:
            del attributes[name]
            attributes.update({name: before[name]} if name in before else {})


def _converting(
    name: str, original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """A method of Keras that calls a function of the user's, an attribute of this name."""
    own, attributes = getattr(self, name, None), vars(self)
    is_users = isinstance(own, types.FunctionType | types.MethodType)
    if not is_users or hasattr(own, "traced") or own.__module__.startswith("keras."):
        return original(self, *args, **kwargs)

    @functools.wraps(own)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return seams.call_traced(own, args, kwargs)

    vars(traced)["traced"], before = True, attributes.get(name)
    attributes[name] = traced
    try:
        return original(self, *args, **kwargs)
    finally:
        attributes.pop(name)
        if before is not None:
            attributes[name] = before


def _building_at_once(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """A layer that is built outside the code that is compiled, so that its values are known."""
    attributes = vars(self)
    build = attributes.get("build")  # Keras wraps the one of the class
    if build is None or self.built:
        return original(self, *args, **kwargs)
    attributes["build"] = functools.wraps(build)(functools.partial(_built_at_once, build))
    try:
        return original(self, *args, **kwargs)
    finally:
        attributes["build"] = build


def _built_at_once(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _compat.outside_scopes(), jax.core.eval_context():
        return build(*args, **kwargs)


def _of_the_default_strategy(
    kind: str, original: Callable[..., Any], self: Any, /, force: bool = False
) -> Any:
    """Keras' own function of a model without a strategy, with a step of ours."""
    if _compat.strategy_of(self) is not None or not seams.speaks_tensorflow:
        return original(self, force)
    is_made = getattr(self, f"{kind}_function") is not None and not force
    is_compiled = self.jit_compile and not self.run_eagerly
    if is_made or not is_compiled or _compat.distribution() is not None:
        return original(self, force)
    return _compat.set_loop_function(self, kind, DefaultStep(self, kind))


@final
class DefaultStep:
    """A step of a model without a strategy, compiled: `(state, batch) -> (logs, state)`.

    Control flow is converted and tables keep their rows, as in our own steps. A step that fails
    leaves the model as it was before.
    """

    def __init__(self, model: Any, kind: str) -> None:
        self._model, self._kind = model, kind
        step = functools.partial(model_step, model, kind)
        if kind == "train":
            step = with_slices(step, None, platform=default_device().platform)
        self._calls = HostCallbacks()
        self._keeping = compiled(step, calls=self._calls)
        self._donating = compiled(step, donate_argnums=0)
        self._programs: dict[Any, Any] = {}

    def __call__(self, state: Any, batch: Any) -> tuple[Any, Any]:
        try:
            return self._program(state, batch)(state, batch)
        except BaseException:
            # Keras' loop has emptied the variables, and holds no values before the first step.
            groups = zip(step_variables(self._model, self._kind), state, strict=True)
            for variables, values in groups:
                for variable, value in zip(variables, values, strict=True):
                    if not value.is_deleted():
                        _compat.store(variable, value)
            _compat.drop_loop_state(self._model)
            raise

    def _program(self, state: Any, batch: Any) -> Any:
        leaves, tree = jax.tree.flatten(batch)
        key = tree, *map(jax.typeof, leaves)
        if key not in self._programs:
            checks = has_host_callbacks(self._donating.trace(state, batch).jaxpr)
            kept = functools.partial(self._calls.run, self._keeping)
            self._programs[key] = kept if checks else self._donating
        return self._programs[key]
