"""Keras 2's spellings of what Keras 3 still does, put into Keras' classes by `replicax.tf.keras`.

Each adds a name, an argument or a kind of path that Keras 3 refuses; what Keras 3 accepts means
what it meant. Nobody who does not use `replicax.tf.keras` sees them. `arguments.py` has a table.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, final

import jax
import keras
import numpy as np

from replicax._core import seams
from replicax._core.channel import Channel
from replicax._core.context import gradients_reduced
from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.gradients import value_and_grad
from replicax._ps.variables.server_variable import ShardedVariable
from replicax.tf._keras2 import added, around, compiled_models, layers
from replicax.tf._keras2.arguments import ARGUMENTS, Change, Given, LeftOut, Renamed, Rounded
from replicax.tf._keras2.saving import (
    is_older_weights_file,
    save_older_weights,
    save_spec,
    saved_also_to_folders,
)
from replicax.tf._random_streams import streams

# Losses that compare number with number, so that a row of outputs needs a row of targets.
_ELEMENTWISE = (
    keras.losses.mean_squared_error,
    keras.losses.mean_absolute_error,
    keras.losses.mean_squared_logarithmic_error,
    keras.losses.mean_absolute_percentage_error,
    keras.losses.huber,
    keras.losses.log_cosh,
    keras.losses.poisson,
    keras.losses.binary_crossentropy,
)
_HIDDEN = "_hides_its_shapes"
_is_installed = False


def install() -> None:
    """Put the spellings into Keras; a second call changes nothing."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    streams()  # before a namespace keeps `keras.utils.set_random_seed`, which resets them
    optimizer: Any = _compat.BaseOptimizer
    for kind in (keras.metrics.Metric, keras.layers.RNN, keras.layers.Bidirectional):
        _add(kind, "reset_states", lambda self: self.reset_state())
    _add(keras.Model, "reset_states", _reset_layers)
    _add(optimizer, "lr", _OlderLearningRate())
    _add(optimizer, "minimize", _minimize)
    _add(optimizer, "get_weights", lambda self: [np.asarray(v.value) for v in self.variables])
    _add(optimizer, "set_weights", _set_weights)
    _add(optimizer, "weights", property(lambda self: self.variables))
    jax.tree_util.register_pytree_node_class(_Variables)
    _compat.register_tree_node_class(_Variables)
    scaling: Any = _compat.LossScaleOptimizer
    for owner in (optimizer, scaling):
        owner.variables = property(functools.partial(_callable, owner.variables.fget))
    _add(optimizer, "get_slot", _get_slot)
    _add(optimizer, "get_slot_names", _get_slot_names)
    # Gradients are scaled back when they are applied.
    _add(_compat.LossScaleOptimizer, "get_scaled_loss", lambda self, loss: self.scale_loss(loss))
    _add(_compat.LossScaleOptimizer, "get_unscaled_gradients", _unscaled_gradients)
    around(optimizer, "apply_gradients", _summed_already)
    around(optimizer, "__init__", _older_optimizer)
    around(keras.optimizers.Adafactor, "build", _by_names_of_keras)
    around(_compat.Trainer, "compute_loss", _flat_targets)
    around(_compat.Trainer, "compile", _metrics_of_each_output)
    layer: Any = keras.Layer
    layer.weights = _with_shards(layer.weights)
    around(keras.Sequential, _compat.REBUILD, _without_shapes)
    _add(layer, "input_shape", _ShapeOf("input"))
    _add(layer, "output_shape", _ShapeOf("output"))
    for name in ("trainable_weights", "non_trainable_weights"):
        setattr(layer, name, property(functools.partial(_of_whole, getattr(layer, name).__get__)))
    for method in ("get_weights", "set_weights", "count_params"):
        around(keras.Layer, method, _of_whole)
    _add(keras.Model, "save_spec", save_spec)
    around(keras.Model, "save", saved_also_to_folders)
    around(keras.Model, "save_weights", _weights_by_prefix)
    around(keras.Model, "load_weights", _loaded_by_prefix)
    around(keras.callbacks.ModelCheckpoint, "__init__", _checkpoint_by_prefix)
    layers.install()
    added.install()
    compiled_models.install()
    for place, table in ARGUMENTS.items():
        kind, _, method = place.partition(".")
        taking = functools.partial(_with_older_arguments, table)
        around(_owner(kind, method), method or "__init__", taking)


def _owner(kind: str, method: str) -> Any:
    """The class of Keras that has a method of the table."""
    if kind == "Optimizer":
        return _compat.BaseOptimizer
    if method in ("fit", "evaluate", "predict"):
        return _compat.JAXTrainer
    if method == "compile":
        return _compat.Trainer
    places = (keras, keras.layers, keras.callbacks)
    return next(getattr(place, kind) for place in places if hasattr(place, kind))


def _add(owner: Any, name: str, what: Any) -> None:
    if not hasattr(owner, name):
        setattr(owner, name, what)


def _metrics_of_each_output(
    method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> None:
    """A `compile` that takes metrics without saying of which output: they are of each."""
    outputs = keras.tree.flatten(self.outputs) if isinstance(self, _compat.Functional) else []
    for name in ("metrics", "weighted_metrics"):
        metrics = options.get(name)
        is_flat = isinstance(metrics, list) and not any(
            isinstance(one, list | tuple | dict) for one in metrics
        )
        if metrics and is_flat and len(outputs) > 1 and len(outputs) != len(metrics):
            options[name] = [list(map(_another, metrics)) for _ in outputs]
    method(self, *args, **options)


def _another(metric: Any) -> Any:
    """A metric of the same kind, with a state of its own."""
    is_object = isinstance(metric, keras.metrics.Metric)
    return type(metric).from_config(metric.get_config()) if is_object else metric


def _reset_layers(self: Any) -> None:
    """Forget what recurrent layers keep from batch to batch."""
    for layer in _compat.layers_in(self):
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            layer.reset_state()


@final
class _OlderLearningRate:
    """`optimizer.lr`, which is `optimizer.learning_rate`."""

    def __get__(self, optimizer: Any, kind: Any = None) -> Any:
        if optimizer is None:
            return self
        own = vars(optimizer)  # of an optimizer of the user's, which keeps an `lr` of its own
        return own["lr"] if "lr" in own else optimizer.learning_rate  # noqa: SIM401

    def __set__(self, optimizer: Any, value: Any) -> None:
        if _compat.holds_learning_rate(optimizer):
            optimizer.learning_rate = value
        else:
            vars(optimizer)["lr"] = value


@final
class _Variables(list[Any]):
    """The variables of an optimizer; Keras 2 has a method in their place, and both work."""

    def __call__(self) -> list[Any]:
        return self

    def tree_flatten(self) -> tuple[list[Any], None]:
        return self, None

    @classmethod
    def tree_unflatten(cls, _: None, held: Any) -> list[Any]:
        return list(held)


def _callable(variables: Any, optimizer: Any) -> list[Any]:
    return _Variables(variables(optimizer))


@final
class _ShapeOf:
    """`layer.input_shape` or `layer.output_shape`, where a layer has none of its own."""

    def __init__(self, end: str) -> None:
        self._end = end

    def __get__(self, layer: Any, kind: Any = None) -> Any:
        if layer is None:
            return self
        if _HIDDEN in vars(layer):
            raise AttributeError(f"{self._end}_shape")
        if isinstance(layer, keras.layers.InputLayer):
            return [tuple(layer.batch_shape)]
        return keras.tree.map_structure(lambda x: tuple(x.shape), getattr(layer, self._end))


def _by_names_of_keras(method: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Make slots that are named as their variables; Keras refuses paths for names."""
    before, seams.speaks_tensorflow = seams.speaks_tensorflow, False
    try:
        method(*args, **options)
    finally:
        seams.speaks_tensorflow = before


def _without_shapes(method: Callable[..., Any], self: Any, /) -> None:
    """The rebuild of a sequential model, which takes a first layer with a shape for a model."""
    first = vars(self.layers[0]) if self.layers else {}
    first[_HIDDEN] = True
    try:
        method(self)
    finally:
        del first[_HIDDEN]


def _minimize(
    self: Any, loss: Any, var_list: Any, grad_loss: Any = None, name: Any = None, tape: Any = None
) -> Any:
    """One step that makes a loss smaller: a function, or a value that a tape has recorded."""
    given_variables: Any = var_list() if callable(var_list) else var_list
    variables = list(given_variables)
    if grad_loss is not None or (tape is None and not callable(loss)):
        given = "grad_loss" if grad_loss is not None else f"a {type(loss).__name__} without a tape"
        raise UsageError(
            f"`minimize` cannot differentiate {given}. Pass a function, "
            "`optimizer.minimize(lambda: compute_loss(), variables)`, or the tape that recorded "
            "the loss, `tape=tape`."
        )
    if tape is None:
        # A loss with axes counts as its sum, as in a tape's `gradient`.
        _, gradients = value_and_grad(lambda: keras.ops.sum(loss()), variables)()
    else:
        if callable(loss):
            with tape:
                loss = loss()
        gradients = tape.gradient(loss, variables)
    return self.apply_gradients(list(zip(gradients, variables, strict=True)))


def _set_weights(self: Any, weights: Sequence[Any]) -> None:
    for variable, value in zip(self.variables, weights, strict=True):
        variable.assign(value)


def _get_slot_names(self: Any) -> list[str]:
    """Keras 2's names of what the optimizer keeps for each variable."""
    paths = [variable.path for variable in self.variables]
    return [n for n, end in _slots(self).items() if any(p.endswith(end) for p in paths)]


def _get_slot(self: Any, var: Any, slot_name: str) -> Any:
    """The variable that the optimizer keeps for another one, by the name of Keras 2."""
    path = var.path.replace("/", "_") + _slots(self).get(slot_name, f"_{slot_name}")
    found = [one for one in self.variables if one.path.rpartition("/")[2] == path]
    if len(found) != 1:
        raise UsageError(
            f"The optimizer has {len(found)} slots {slot_name!r} of '{var.path}'; it has the "
            f"names {self.get_slot_names()}. Call `optimizer.build(variables)` first, and give "
            "variables different names."
        )
    return found[0]


def _slots(optimizer: Any) -> dict[str, str]:
    """Keras 2's names of slots, and the ends of Keras 3's paths."""
    names = (kind.__name__ for kind in type(optimizer).__mro__)
    return next((_SLOTS[name] for name in names if name in _SLOTS), {})


_OF_ADAM = {"m": "_momentum", "v": "_velocity", "vhat": "_velocity_hat"}
_SLOTS = {
    "Adadelta": {"accum_grad": "_accumulated_grad", "accum_var": "_accumulated_delta_var"},
    "Adagrad": {"accumulator": "_accumulator"},
    "Adam": _OF_ADAM,
    "Adamax": {**_OF_ADAM, "v": "_norm"},
    "Ftrl": {"accumulator": "_accumulator", "linear": "_linear"},
    "Nadam": _OF_ADAM,
    "RMSprop": {"rms": "_velocity", "momentum": "_momentum", "mg": "_average_gradient"},
    "SGD": {"momentum": "_momentum"},
}


def _unscaled_gradients(self: Any, gradients: Sequence[Any]) -> list[Any]:
    """Gradients of a scaled loss, scaled back; until they are applied they may be clipped.

    Keras 3 scales back what is applied. So it is scaled again there: by a power of two, without
    rounding.
    """

    def apply(grads: Any, trainable_variables: Any = None) -> Any:
        del vars(self)["apply"]
        scaled = [None if gradient is None else gradient * _scale_of(self) for gradient in grads]
        return self.apply(scaled, trainable_variables)

    vars(self)["apply"] = apply  # on the object: outside what strategies put into the class
    return [None if gradient is None else gradient / _scale_of(self) for gradient in gradients]


def _scale_of(optimizer: Any) -> Any:
    return optimizer.dynamic_scale if optimizer.built else optimizer.initial_scale


def _older_optimizer(
    method: Callable[..., Any], self: Any, /, learning_rate: Any, *args: Any, **options: Any
) -> None:
    """The `__init__` of optimizers, with rates of other types, and with `decay`.

    A variable stays the rate. With `decay` the rate is divided by 1 + decay · updates.
    """
    given = learning_rate
    if hasattr(given, "__float__"):  # an integer, a tensor or a variable; Keras 3 takes no such
        learning_rate = float(given)
    decay = options.pop("decay", None)
    if decay:
        learning_rate = keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)
    method(self, learning_rate, *args, **options)
    if isinstance(given, keras.Variable) and not decay:
        self._untrack_variable(self._learning_rate)
        self._track_variable(given)
        self._learning_rate = given


def _summed_already(
    method: Callable[..., Any],
    self: Any,
    /,
    grads_and_vars: Any,
    name: Any = None,
    experimental_aggregate_gradients: bool = True,
    skip_gradients_aggregation: bool = False,
) -> Any:
    """The `apply_gradients` of optimizers, also with gradients that replicas have summed."""
    summed = skip_gradients_aggregation or not experimental_aggregate_gradients
    with gradients_reduced() if summed else contextlib.nullcontext():
        return method(self, grads_and_vars)


def _flat_targets(
    method: Callable[..., Any],
    self: Any,
    /,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    *args: Any,
    **options: Any,
) -> Any:
    """The `compute_loss` of models: targets by the output's name, or one for all of a row."""
    names: Any = getattr(self, "output_names", None)
    y, sample_weight = (
        one[names[0]] if isinstance(one, dict) and [*one] == names == names[:1] else one
        for one in (y, sample_weight)
    )
    if _is_flat(y, y_pred) and _is_elementwise(self.loss):
        y = keras.ops.expand_dims(y, 1)
    return method(self, x, y, y_pred, sample_weight, *args, **options)


def _is_flat(targets: Any, outputs: Any) -> bool:
    known = hasattr(targets, "shape") and hasattr(outputs, "shape")
    return known and len(targets.shape) == 1 and len(outputs.shape) == 2 and outputs.shape[1] != 1


def _is_elementwise(loss: Any) -> bool:
    found = keras.losses.get(loss) if isinstance(loss, str) or callable(loss) else None
    return getattr(found, "fn", found) in _ELEMENTWISE


def _with_older_arguments(
    table: dict[str, Change], method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> Any:
    """A method that takes these arguments of Keras 2, too."""
    given = {name: change.value for name, change in table.items() if isinstance(change, Given)}
    for name in table.keys() & options.keys():
        change, value = table[name], options.pop(name)
        if isinstance(change, Renamed):
            options[change.name] = value
        elif isinstance(change, Rounded):
            options[name] = math.ceil(value) if isinstance(value, float) else value
        elif not isinstance(change, LeftOut) or (change.values and value not in change.values):
            options[name] = value
    return method(self, *args, **(given | options if given and not args else options))


def _weights_by_prefix(
    original: Callable[..., Any], self: Any, /, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    path = os.fspath(filepath)
    if is_older_weights_file(path):
        return save_older_weights(self, path, *args, **kwargs)
    if not path.endswith((".h5", ".json")):
        path += ".weights.h5"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return original(self, path, *args, **kwargs)


def _loaded_by_prefix(
    original: Callable[..., Any], self: Any, /, filepath: Any, *args: Any, **kwargs: Any
) -> Any:
    if filepath is None:
        raise UsageError(
            "`load_weights` got None as its path. `latest_checkpoint` returns None for a "
            "folder without checkpoints: check the folder."
        )
    path = os.fspath(filepath)
    if os.path.exists(path + ".weights.h5"):
        path += ".weights.h5"
    if os.path.exists(path + ".index"):
        from replicax.train import Checkpoint

        return Checkpoint(self).among(Channel()).read(path)
    original(self, path, *args, **kwargs)
    return _Loaded()


@final
class _Loaded:
    """The status that TensorFlow's `load_weights` returns; here all weights have been loaded."""

    def assert_consumed(self) -> _Loaded:
        """Do nothing."""
        return self

    expect_partial = assert_existing_objects_matched = assert_consumed


def _checkpoint_by_prefix(
    original: Callable[..., Any],
    self: Any,
    /,
    filepath: Any,
    monitor: str = "val_loss",
    verbose: Any = 0,
    save_best_only: bool = False,
    save_weights_only: bool = False,
    *args: Any,
    **kwargs: Any,
) -> None:
    period = kwargs.pop("period", None) or 1
    path = os.fspath(filepath)
    if not path.endswith((".keras", ".h5", ".hdf5")):
        path += ".weights.h5" if save_weights_only else ".keras"
    named = path
    if is_older_weights_file(path):  # Keras takes no other endings
        path += ".weights.h5" if save_weights_only else ".h5"
    original(self, path, monitor, verbose, save_best_only, save_weights_only, *args, **kwargs)
    self.filepath = named
    if period > 1:
        self.on_epoch_end = _every(period, self.on_epoch_end)


def _every(period: int, save: Callable[..., None]) -> Callable[..., None]:
    """The `on_epoch_end` of a callback that saves after some epochs; Keras 3 counts batches."""
    epochs = itertools.count(1)

    def on_epoch_end(epoch: int, logs: Any = None) -> None:
        if next(epochs) % period == 0:
            save(epoch, logs)

    return on_epoch_end


# `layer.weights` has the shards of variables that parameter servers divide, as in TensorFlow. What
# reads or writes values still sees whole variables.
_whole = ContextVar("whole", default=False)


def _with_shards(weights: property) -> property:
    """The property `weights`: in place of a sharded variable, its shards."""

    def found(self: Any) -> list[Any]:
        """The variables of a layer or model; of a divided one, its shards."""
        wants_whole = _whole.get() or not seams.speaks_tensorflow
        variables = _of_whole(weights.__get__, self)
        return variables if wants_whole else [part for v in variables for part in _parts(v)]

    return property(found)


def _of_whole(method: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
    """Call a method that works on whole variables."""
    token = _whole.set(True)
    try:
        return method(*args, **options)
    finally:
        _whole.reset(token)


def _parts(variable: Any) -> list[Any]:
    return list(variable.variables) if isinstance(variable, ShardedVariable) else [variable]
