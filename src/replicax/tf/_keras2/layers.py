"""Layers as Keras 2 has them: their names, their first weights, and how they are called."""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import jax
import keras
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.options import VariableSynchronization
from replicax._core.tracing import current_trace
from replicax._function.function import function
from replicax._keras import _compat
from replicax._keras.variable import Variable
from replicax._tape.recording_trace import RecordingTrace
from replicax.data import Dataset
from replicax.tf._flow import control_flow
from replicax.tf._keras2 import around
from replicax.tf._keras2.arguments import ADD_WEIGHT, ADD_WEIGHT_OF_A_METRIC

# Of the layers these refuse a number that is NumPy's. Convolutions and pooling ask in a class that
# all axes share.
_ASK_FOR_INTEGERS = (
    *(getattr(keras.layers, f"{name}2D").__base__ for name in ("Conv", "DepthwiseConv")),
    *(getattr(keras.layers, f"{name}2D").__base__ for name in ("SeparableConv", "MaxPooling")),
    keras.layers.Conv2DTranspose.__base__,
    *(getattr(keras.layers, f"{n}{d}D") for n in ("Cropping", "ZeroPadding") for d in (1, 2, 3)),
    *(keras.layers.GRUCell, keras.layers.LSTMCell, keras.layers.SimpleRNNCell),
    keras.layers.Dense,
    keras.layers.Embedding,
    keras.layers.MultiHeadAttention,
    keras.layers.RepeatVector,
    *(keras.layers.UpSampling1D, keras.layers.UpSampling2D, keras.layers.UpSampling3D),
)

# Weights that Keras 3 reads by a property: a program sets what a step of meta-learning computes.
_WITH_PROPERTIES = (
    (keras.layers.Dense, "kernel"),
    (keras.layers.EinsumDense, "kernel"),
    (keras.layers.Conv2D, "kernel"),
    (keras.layers.Embedding, "embeddings"),
)

# Packages whose dicts Keras' own replace; a `defaultdict` may get layers later.
_DICTS = {"builtins", "collections", "keras"}


def install() -> None:
    """Put them into Keras; it is called once."""
    for owner in (keras.Operation, keras.name_scope):
        around(owner, "__init__", _with_any_name)
    around(keras.Layer, "__init__", _with_first_weights)
    around(keras.layers.InputLayer, "__init__", _with_a_length)
    # For `for layer in model.layers: x = layer(x)`; Keras 3's takes no argument.
    keras.layers.InputLayer.call = lambda self, inputs=None: inputs
    for owner in _ASK_FOR_INTEGERS:
        around(owner, "__init__", _with_plain_integers)
    around(keras.DTypePolicy, "convert_input", _known_integers)
    around(keras.Layer, "__setattr__", _in_place_of_a_weight)
    around(keras.Layer, "__call__", _training_of_compiled_code)
    around(keras.Layer, "__call__", _flags_by_name)
    around(keras.Layer, "__call__", _training_from_around)
    around(keras.Layer, "__call__", _mask_of_the_first)
    around(keras.Layer, "add_variable", _as_a_weight)
    around(_compat.Tracker, "track", _of_its_class)
    around(keras.Sequential, "add", _with_batch_shape)
    around(keras.layers.RNN, "call", _recorded_whole)
    around(keras.layers.Normalization, "adapt", _adapt_to_batches)
    for layer, weight in _WITH_PROPERTIES:
        owner = next(one for one in layer.__mro__ if weight in vars(one))
        setattr(owner, weight, vars(owner)[weight].setter(functools.partial(_set_weight, weight)))
    for name in ("input", "output"):
        of_a_call = getattr(keras.Sequential, name).fget
        setattr(keras.Sequential, name, property(functools.partial(_own_end, name, of_a_call)))
    for owner, order in ((keras.Layer, ADD_WEIGHT), (keras.metrics.Metric, ADD_WEIGHT_OF_A_METRIC)):
        around(owner, "add_weight", functools.partial(_name_first, order))


def _with_any_name(
    method: Callable[..., Any], self: Any, /, name: Any = None, *args: Any, **options: Any
) -> None:
    """An `__init__` that takes a name with slashes, which Keras 3 keeps for paths."""
    has_slashes = isinstance(name, str) and "/" in name
    method(self, name.replace("/", "_") if has_slashes else name, *args, **options)
    if has_slashes:
        self.name = name


def _with_first_weights(
    method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> None:
    """The `__init__` of layers, with `weights` and `batch_input_shape`, and by Keras 2's positions.

    A model takes no notice of what it is given by position, as in Keras 2.
    """
    if args and type(self) is keras.Model:
        raise UsageError(
            f"`Model` got {len(args)} argument(s) by position. Pass `inputs` and `outputs` by "
            "position, and the others by name."
        )
    if args and not isinstance(self, keras.Model):
        if not isinstance(args[0], bool):
            raise UsageError.of("trainable", "True or False", args[0])
        options |= dict(zip(("trainable", "name", "dtype"), args, strict=False))
    weights = options.pop("weights", None)
    batch_shape = options.pop("batch_input_shape", None)
    method(self, **options)
    if batch_shape is not None:
        self._batch_input_shape = tuple(batch_shape)
    if weights is not None:
        _compat.after_build(self, lambda: _set_first(self, weights))


def _set_weight(name: str, layer: Any, value: Any) -> None:
    setattr(layer, f"_{name}", value)


def _in_place_of_a_weight(method: Callable[..., Any], self: Any, /, name: str, value: Any) -> None:
    """`layer.kernel = tf.Variable(…)`: as in TensorFlow, the old one is no weight any more.

    Keras 3 has locked a layer that is built.
    """
    if not isinstance(value, keras.Variable) or not _compat.is_tracking(self):
        return method(self, name, value)
    has_property = isinstance(getattr(type(self), name, None), property)
    before = vars(self).get(f"_{name}" if has_property else name)
    if before is value or not isinstance(before, keras.Variable):
        return method(self, name, value)
    with _compat.replacing(self, before):
        return method(self, name, value)


def _known_integers(
    method: Callable[..., Any], self: Any, /, x: Any, *args: Any, **options: Any
) -> Any:
    """The `convert_input` of layers: integers of the host stay known while code is compiled.

    A layer may take its sizes by them: `layer(x, size=tf.shape(x)[1:3])`.
    """
    is_known = isinstance(x, np.ndarray | np.generic) and x.dtype.kind in "iu"
    with jax.ensure_compile_time_eval() if is_known else contextlib.nullcontext():
        return method(self, x, *args, **options)


def _set_first(layer: Any, weights: Any) -> None:
    with _compat.outside_scopes():
        for variable, value in zip(layer.weights, weights, strict=True):
            if _compat.awaits_value(variable) and np.shape(value) == tuple(variable.shape):
                _compat.set_initializer(variable, value)
            else:
                variable.assign(value)


def _with_batch_shape(
    method: Callable[..., Any], self: Any, /, layer: Any, *args: Any, **options: Any
) -> None:
    """The `add` of sequential models, which begin with an `Input` of what the first layer says."""
    shape = getattr(layer, "_batch_input_shape", None)
    if shape is not None and not self.layers:
        method(self, keras.Input(batch_shape=shape), *args, **options)
    method(self, layer, *args, **options)


def _own_end(name: str, of_a_call: Callable[[Any], Any], model: Any) -> Any:
    """The `input` or `output` of a sequential model: its own, or a list, if no model calls it."""
    try:
        return of_a_call(model)
    except AttributeError:
        tensors = getattr(model, f"{name}s")
        return tensors[0] if len(tensors) == 1 else tensors


def _flags_by_name(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    """The `__call__` of layers: `layer(x, True)` and `layer(x, None, training)` by names."""
    names = _compat.positional_names(self) if len(args) > 1 else []
    if "training" in names[1 : len(args)] or any(isinstance(each, bool) for each in args[1:]):
        flags = [one is None or isinstance(one, bool) for one in args]
        first = (flags + [True]).index(True, 1)
        if "training" in names[1:]:
            first = min(first, names.index("training"))
        named = dict(zip(names[first:], args[first:], strict=False))
        if len(named) == len(args) - first:
            return method(self, *args[:first], **named, **options)
    return method(self, *args, **options)


def _training_from_around(
    method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> Any:
    """The `__call__` of layers whose `call` asks for `training`: what it is around, or None."""
    is_given = "training" in options or not _compat.needs_training(self)
    if not is_given and len(args) <= self.call_signature_parameters.index("training"):
        options["training"] = _compat.training_around()
    return method(self, *args, **options)


def _training_of_compiled_code(
    method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> Any:
    """The `__call__` of Keras' layers, whose `training` may be an array of compiled code."""
    flag = options.get("training")
    flag = _compat.training_around() if flag is None else flag
    is_open = isinstance(flag, Tracer) and type(self).call.__module__.startswith("keras.")
    if not is_open or "training" not in _compat.positional_names(self)[len(args) :]:
        return method(self, *args, **options)
    call = functools.partial(method, self, *args, **options)
    if not self.built:
        call(training=False)
    result = control_flow.cond(flag, lambda: call(training=True), lambda: call(training=False))
    _compat.set_training_around(flag)
    return result


def _recorded_whole(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    """The `call` of recurrent layers: a tape outside compiled code sees one operation.

    It would not see the variables that are read in the loop, which JAX compiles.
    """
    trace = current_trace()
    if self.unroll or not isinstance(trace, RecordingTrace) or not trace.is_eager:
        return method(self, *args, **options)
    settings = [
        value
        for layer in (self, *_compat.layers_in(self))
        for name, value in vars(layer).items()
        if not name.startswith("_")
    ]
    # The layer holds it, so that it lives as long; other settings make other code.
    before, compiled = vars(self).get("_compiled_call", ((), None))
    if len(before) != len(settings) or any(map(operator.is_not, before, settings)):
        compiled = function(types.MethodType(method, self))
        vars(self)["_compiled_call"] = settings, compiled
    return compiled(*args, **options)


def _adapt_to_batches(method: Callable[..., Any], self: Any, /, data: Any) -> None:
    """The `adapt` of `Normalization` to a data set; Keras' asks TensorFlow whether it is one."""
    if hasattr(data, "shape") or isinstance(data, keras.utils.PyDataset):
        method(self, data)
        return
    if isinstance(data, list | tuple):
        method(self, np.asarray(data))
        return
    if isinstance(data, Dataset):
        spec = keras.tree.flatten(data.element_spec)[0]
        data = data.batch(128) if spec.shape is not None and len(spec.shape) == 1 else data
    count, mean, variance = 0, 0.0, 0.0
    for batch in data:
        rows = np.asarray(batch[0] if isinstance(batch, tuple) else batch)
        if not rows.size:
            continue
        method(self, rows)
        others, spread = np.float64(self.adapt_mean), np.float64(self.adapt_variance)
        added = rows.size // others.size
        count += added
        weight = added / count
        apart = others - mean
        variance = variance * (1 - weight) + (spread + apart**2 * (1 - weight)) * weight
        mean = mean + apart * weight
    if not count:
        raise UsageError("`data` has no rows to adapt to. Pass a data set with at least one batch.")
    self.adapt_mean.assign(mean)
    self.adapt_variance.assign(variance)
    self.finalize_state()


def _mask_of_the_first(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    """The `__call__` of a program's own layers with several inputs: `mask` is the first one's.

    Keras 3 gives it to layers with one input only; with several it looks for `inputs_mask`.
    """
    names = self.call_signature_parameters
    is_open = "mask" in names[len(args) :] and "mask" not in options
    is_own = not type(self).call.__module__.startswith("keras.")
    if is_open and is_own and len(args) + len(options) > 1:
        first = args[0] if args else options.get(names[0])
        masks = keras.tree.map_structure(_compat.keras_mask, first)
        if any(mask is not None for mask in keras.tree.flatten(masks)):
            options["mask"] = masks
    return method(self, *args, **options)


def _with_plain_integers(
    method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> None:
    """An `__init__` that takes integers of NumPy and tensors, such as `labels.max() + 1`."""

    def plain(value: Any) -> Any:
        if type(value) in (tuple, list):
            return type(value)(plain(one) for one in value)
        if isinstance(value, Tracer) or not isinstance(value, np.integer | np.ndarray | jax.Array):
            return value
        return int(value) if not value.ndim and value.dtype.kind in "iu" else value

    method(self, *map(plain, args), **{name: plain(one) for name, one in options.items()})


def _with_a_length(
    method: Callable[..., Any], self: Any, /, shape: Any = None, *args: Any, **options: Any
) -> None:
    """The `__init__` of inputs, of which a shape may be one number."""
    method(self, (shape,) if isinstance(shape, int) else shape, *args, **options)


def _of_its_class(method: Callable[..., Any], self: Any, /, attr: Any) -> Any:
    """The value of a layer's attribute: a dict with attributes, such as `EasyDict`, stays as it is;
    Keras would copy it into a dict of its own, without its attributes."""
    if isinstance(attr, dict) and _has_attributes(attr):
        for value in attr.values():
            self.track(value)
        return attr
    return method(self, attr)


def _has_attributes(given: dict[Any, Any]) -> bool:
    kind = type(given)
    is_own = kind.__module__.partition(".")[0] not in _DICTS
    reads = hasattr(kind, "__getattr__") or kind.__setattr__ is not dict.__setattr__
    return is_own and (reads or bool(getattr(given, "__dict__", None)))


def _as_a_weight(method: Callable[..., Any], self: Any, /, *args: Any, **options: Any) -> Any:
    """The older name of `add_weight`."""
    return self.add_weight(*args, **options)


def _name_first(
    order: tuple[str, ...], method: Callable[..., Any], self: Any, /, *args: Any, **options: Any
) -> Any:
    """An `add_weight` whose positional arguments are Keras 2's if they begin with a name."""
    if args and isinstance(args[0], str):
        options |= dict(zip(order, args, strict=False))
        args = ()
    if isinstance(options.get("shape"), int):
        options["shape"] = (options["shape"],)
    if isinstance(options.get("name"), str):
        options["name"] = options["name"].replace("/", "_")
    synchronization = options.pop("synchronization", None)
    if isinstance(self, keras.metrics.Metric):
        options.pop("aggregation", None)  # a metric's are sums over replicas always
    elif synchronization == VariableSynchronization.ON_READ:
        return _of_each_replica(self, *args, **options)
    return method(self, *args, **options)


def _of_each_replica(
    layer: Any,
    shape: Any = (),
    initializer: Any = None,
    dtype: Any = None,
    *,
    aggregation: str = "none",
    name: str | None = None,
    **options: Any,
) -> Variable:
    del options  # of weights that are trained
    with keras.name_scope(layer.name, caller=layer):
        return Variable(
            keras.initializers.get(initializer or "zeros"),
            trainable=False,
            name=name,
            dtype=dtype or layer.variable_dtype,
            synchronization=VariableSynchronization.ON_READ,
            aggregation=aggregation,
            shape=shape,
        )
