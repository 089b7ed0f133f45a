"""`Module`: an object that finds the variables in what it holds."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat

_OWNERS = (keras.layers.Layer, keras.metrics.Metric, _compat.BaseOptimizer)


class Module:
    """A base class for objects with variables, such as a model without Keras layers.

    Variables, modules, and Keras layers, models, metrics and optimizers are found in attributes,
    and in the lists, tuples and dicts there. `rx.train.Checkpoint` and `tf.saved_model.save` take
    modules, too.

    **Differs from TF:** `submodules` has Keras layers and models as well.

    Args:
        name: Its name, a Python identifier; None for the class' name in lower case.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> class Line(rx.Module):
        ...     def __init__(self):
        ...         super().__init__(name="line")
        ...         with self.name_scope:
        ...             self.slope = rx.Variable(2.0, name="slope")
        ...         self.offset = [rx.Variable(1.0, trainable=False)]
        ...     def __call__(self, x):
        ...         return self.slope * x + self.offset[0]
        >>> line = Line()
        >>> float(line(3.0)), [v.path for v in line.trainable_variables], len(line.variables)
        (7.0, ['line/slope'], 2)
    """

    def __init__(self, name: str | None = None) -> None:
        if name is not None and not name.isidentifier():
            raise UsageError(
                f"{name!r} is not a valid module name. Use letters, digits and underscores."
            )
        self._name = name or _snake(type(self).__name__)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        for call in self.__dict__.get("_after_setting", ()):
            call()

    def after_setting(self, call: Callable[[], object]) -> None:
        """Call a function after each attribute is set, for a restored checkpoint."""
        before = self.__dict__.get("_after_setting", ())
        self.__dict__["_after_setting"] = (*before, *({call} - set(before)))

    @property
    def name(self) -> str:
        """The name."""
        return self.__dict__.get("_name") or _snake(type(self).__name__)

    @property
    def name_scope(self) -> Any:
        """A context manager: variables that are made in it have the module's name in their path."""
        return keras.name_scope(self.name)

    @classmethod
    def with_name_scope(cls, method: Callable[..., Any]) -> Callable[..., Any]:
        """Decorate a method: it runs in the module's name scope."""

        @functools.wraps(method)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.name_scope:
                return method(self, *args, **kwargs)

        return wrapped

    @property
    def variables(self) -> tuple[Any, ...]:
        """All variables, each once, in the order of the attributes' names."""
        found = (one for one in _held(self, set()) if isinstance(one, _compat.KerasVariable))
        return tuple({id(variable): variable for variable in found}.values())

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The trainable variables, without those of frozen Keras layers."""
        frozen = {
            id(variable)
            for owner in _held(self, set())
            if isinstance(owner, keras.layers.Layer)
            for variable in owner.non_trainable_variables
        }
        return tuple(v for v in self.variables if v.trainable and id(v) not in frozen)

    @property
    def non_trainable_variables(self) -> tuple[Any, ...]:
        """All other variables."""
        trained = {id(variable) for variable in self.trainable_variables}
        return tuple(variable for variable in self.variables if id(variable) not in trained)

    @property
    def submodules(self) -> tuple[Any, ...]:
        """The modules, layers and models in it, at any depth."""
        kinds = (Module, keras.layers.Layer)
        found = (one for one in _held(self, set()) if isinstance(one, kinds) and one is not self)
        return tuple({id(module): module for module in found}.values())


def _held(value: Any, seen: set[int]) -> Iterator[Any]:
    """The variables, modules and layers in a value, itself first."""
    if isinstance(value, (str, bytes)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (_compat.KerasVariable, Module, *_OWNERS)):
        yield value
    if isinstance(value, Module):
        for _, held in sorted(vars(value).items()):
            yield from _held(held, seen)
    elif isinstance(value, _OWNERS):
        yield from value.variables
        if isinstance(value, keras.layers.Layer):
            yield from (part for part in _compat.layers_in(value) if id(part) not in seen)
    elif isinstance(value, (Mapping, list, tuple, set)):
        for held in value.values() if isinstance(value, Mapping) else value:
            yield from _held(held, seen)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
