"""What `replicax.tf` puts into Keras behind our own seams, with the first strategy."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Generator
from typing import Any

import jax.core
import keras

from replicax._core import seams
from replicax._core.compiling import prepare
from replicax._core.lowering import with_rules
from replicax._core.table_gradients import with_rows
from replicax._core.topology import default_device
from replicax._keras import _compat
from replicax.tf._keras2 import around, own_steps, uncalled
from replicax.tf._sizes import trying_sizes


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
    around(keras.Operation, "compute_output_spec", trying_sizes)
    for kind in ("train", "test", "predict"):
        around(
            _compat.JAXTrainer,
            f"make_{kind}_function",
            functools.partial(_of_the_default_strategy, kind=kind),
        )
    own_steps.install()


def _converting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of Keras that calls a function of the user's, an attribute of this name."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
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

    return method


def _building_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer that is built outside the code that is compiled, so that its values are known."""

    @functools.wraps(original)
    def call_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        attributes = vars(self)
        build = attributes.get("build")  # Keras wraps the one of the class
        if build is None or self.built:
            return original(self, *args, **kwargs)
        attributes["build"] = functools.wraps(build)(functools.partial(_built_at_once, build))
        try:
            return original(self, *args, **kwargs)
        finally:
            attributes["build"] = build

    return call_layer


def _built_at_once(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with _compat.outside_scopes(), jax.core.eval_context():
        return build(*args, **kwargs)


def _of_the_default_strategy(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Keras' own function of a model without a strategy, which the default strategy trains."""

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if _compat.strategy_of(self) is not None or not seams.speaks_tensorflow:
            return original(self, force)
        prepare(default_device().platform)
        with _traced_by_us(self, kind):
            return original(self, force)

    return make


@contextlib.contextmanager
def _traced_by_us(model: Any, kind: str) -> Generator[None, None, None]:
    """Let what Keras compiles be as our own steps: control flow converted, tables by rows."""
    attributes, name = vars(model), f"{kind}_step"
    own, step = attributes.get(name), getattr(model, name)

    @functools.wraps(step)
    def traced(*args: Any) -> Any:
        return seams.call_traced(step, args, {})

    if not model.run_eagerly and model.jit_compile and _compat.distribution() is None:
        platform = default_device().platform
        by_rows = with_rows(traced, None, platform=platform) if kind == "train" else traced
        attributes[name] = with_rules(by_rows) if platform == "cpu" else by_rows
    try:
        yield
    finally:
        attributes.pop(name, None)
        if own is not None:
            attributes[name] = own
