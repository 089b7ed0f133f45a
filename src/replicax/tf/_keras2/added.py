"""Losses and metrics of a `call`, as Keras 2 has them: `add_loss`, `add_metric`, metrics of layers.

What a functional model is given becomes a layer of it, as in Keras 2, so that it is saved.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, final

import jax
import jax.core
import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax.tf._keras2 import around

_FUNCTIONS = "_losses_by_functions"
_results: weakref.WeakKeyDictionary[Any, weakref.ref[Any]] = weakref.WeakKeyDictionary()


def install() -> None:
    """Put them into Keras; it is called once."""
    around(keras.Layer, "add_loss", _of_every_kind)
    del _compat.Functional.add_loss  # which refuses all
    around(keras.Layer, _compat.OWN_LOSSES, _with_functions)
    around(keras.metrics.Metric, "__call__", _noted)
    around(_compat.JAXTrainer, "compute_loss_and_updates", _with_metrics_of_layers)
    keras.Layer.add_metric = _add_metric  # pyright: ignore[reportAttributeAccessIssue]


def _of_every_kind(method: Callable[..., Any], self: Any, /, loss: Any) -> None:
    """An `add_loss` that takes also functions, numbers and symbolic tensors."""
    known = []
    for one in keras.tree.flatten(loss):
        if isinstance(one, keras.KerasTensor):
            _add_symbolic(self, one)
        elif callable(one):
            vars(self).setdefault(_FUNCTIONS, []).append(one)
        elif one is not None:
            known.append(keras.ops.convert_to_tensor(one))
    if known:
        method(self, known)


def _add_symbolic(model: Any, loss: Any) -> None:
    if isinstance(model, _compat.Functional):
        _add_layer(model, AddLoss(), loss)
    elif isinstance(model, keras.Sequential):
        raise UsageError(
            f"Cannot add a symbolic loss to the sequential model {model.name!r}. Make a "
            "functional model, `tf.keras.Model(inputs, outputs)`, or add the loss in a layer's "
            "`call`."
        )
    else:
        # A `call` by hand, for a summary perhaps: it is no loss of any step, as in TensorFlow.
        _compat.add_loss(model, loss)


def _add_layer(model: Any, layer: Any, value: Any) -> None:
    """Let the first output of a functional model go through a layer that is given a value, too."""
    first, *others = keras.tree.flatten(model.output)
    outputs = [layer([first, value]), *others]
    _compat.set_outputs(model, outputs)


def _with_functions(method: Callable[..., Any], self: Any, /) -> list[Any]:
    return [*method(self), *(function() for function in vars(self).get(_FUNCTIONS, ()))]


class _Beside(keras.layers.Layer):
    """Returns the first of its inputs."""

    def __init__(self, **options: Any) -> None:
        super().__init__(autocast=False, **options)
        self.supports_masking = True

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> Any:
        return previous_mask[0] if isinstance(previous_mask, list | tuple) else previous_mask


@final
@keras.saving.register_keras_serializable("replicax")
class AddLoss(_Beside):
    """Adds a loss and returns what it is given beside it."""

    def call(self, inputs: Any) -> Any:
        output, loss = inputs
        self.add_loss(loss)
        return output


@final
@keras.saving.register_keras_serializable("replicax")
class AddMetric(_Beside):
    """Adds to a mean and returns what it is given beside the value."""

    def __init__(self, metric: str, **options: Any) -> None:
        super().__init__(**options)
        self.mean = keras.metrics.Mean(metric)

    def call(self, inputs: Any) -> Any:
        output, value = inputs
        self.mean.update_state(value)
        return output

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "metric": self.mean.name}


def _with_metrics_of_layers(
    method: Callable[..., Any],
    self: Any,
    /,
    trainable: Any,
    others: Any,
    metrics: Any,
    *args: Any,
    **options: Any,
) -> Any:
    """The forward pass of `fit` and `evaluate`, in which a `call` may update metrics."""
    if not any(_compat.own_metrics(layer) for layer in [self, *_compat.layers_in(self)]):
        return method(self, trainable, others, metrics, *args, **options)
    variables, values = self.metrics_variables, list(metrics)
    call, compute_loss = self.call, self.stateless_compute_loss

    @functools.wraps(call)
    def updating(*args: Any, **options: Any) -> Any:
        scope: Any = _compat.get_stateless_scope()
        for variable, value in zip(variables, values, strict=True):
            scope.add_update((variable, value))
        result = call(*args, **options)
        values[:] = [scope.get_current_value(variable) for variable in variables]
        return result

    def after(trainable: Any, others: Any, _metrics: Any, **options: Any) -> Any:
        return compute_loss(trainable, others, values, **options)

    attributes = vars(self)
    attributes |= {"call": updating, "stateless_compute_loss": after}
    try:
        return method(self, trainable, others, metrics, *args, **options)
    finally:
        del attributes["call"], attributes["stateless_compute_loss"]


def _noted(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    """The `__call__` of metrics, whose last result is known as theirs."""
    result = method(self, *args, **options)
    if isinstance(result, jax.Array):
        _results[self] = weakref.ref(result)
    return result


def _add_metric(self: Any, value: Any, name: str | None = None, aggregation: Any = None) -> None:
    """Report the mean of a value, or the metric that the value is a result of."""
    metric = next((one for one, result in _results.items() if result() is value), None)
    if metric is not None:
        _compat.track_metric(self, metric)
        return
    if name is None or aggregation not in (None, "mean"):
        raise UsageError(
            f"`add_metric` needs a name and reports a mean, got name={name!r}, "
            f"aggregation={aggregation!r}. For another aggregation call a metric in `call`: "
            "`self.add_metric(metric(value))`."
        )
    if isinstance(value, keras.KerasTensor):
        _add_symbolic_metric(self, value, name)
        return
    own = next((one for one in _compat.own_metrics(self) if one.name == name), None)
    if own is None:
        with _compat.outside_scopes(), jax.core.eval_context():
            own = keras.metrics.Mean(name)
        _compat.track_metric(self, own)
    own.update_state(value)


def _add_symbolic_metric(model: Any, value: Any, name: str) -> None:
    if not isinstance(model, _compat.Functional):
        raise UsageError(
            f"Cannot add the symbolic metric {name!r} to {model.name!r}, a "
            f"{type(model).__name__}. Add it to a functional model, `tf.keras.Model(inputs, "
            "outputs)`, or compute it in a layer's `call`."
        )
    _add_layer(model, AddMetric(name), value)
