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
from replicax._core.table_gradients import with_rows
from replicax._core.topology import default_device
from replicax._keras import _compat
from replicax.tf._keras2 import around, uncalled


def install() -> None:
    """Put them in; it is called once."""
    uncalled.install()
    for name in ("__call__", "stateless_call"):  # both call `call`
        around(keras.layers.Layer, name, _with_its_call_converted)
    for kind in ("train", "test", "predict"):
        around(
            _compat.JAXTrainer,
            f"make_{kind}_function",
            functools.partial(_of_the_default_strategy, kind=kind),
        )


def _with_its_call_converted(original: Callable[..., Any]) -> Callable[..., Any]:
    """A layer, whose own `call` is a function that is traced, where it is."""

    @functools.wraps(original)
    def call_layer(self: Any, *args: Any, **kwargs: Any) -> Any:
        own, attributes = self.call, vars(self)
        is_method = isinstance(own, types.MethodType) and "call" not in attributes
        if not is_method or own.__module__.startswith("keras."):
            return original(self, *args, **kwargs)
        attributes["call"] = functools.wraps(own)(lambda *a, **k: seams.call_traced(own, a, k))
        build = attributes.get("build")
        if build is not None and not self.built:
            attributes["build"] = functools.wraps(build)(functools.partial(_built_at_once, build))
        try:
            return original(self, *args, **kwargs)
        finally:
            del attributes["call"]
            if build is not None:
                attributes["build"] = build

    return call_layer


def _built_at_once(build: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Build a layer outside the code that is compiled, so that its values are known."""
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
        by_rows = kind == "train"
        attributes[name] = with_rows(traced, None, platform=platform) if by_rows else traced
    try:
        yield
    finally:
        attributes.pop(name, None)
        if own is not None:
            attributes[name] = own
