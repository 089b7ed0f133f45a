"""Models with text inputs: their first layers run on the host, the others on the devices.

Devices have no text. A functional or sequential model with an `Input(dtype="string")` is split in
two functions of the same layers: the layers that read text make arrays on the host, and the other
layers take these arrays on the devices. A call runs both, one after the other; `fit`, `evaluate`
and `predict` run the host part on each batch beforehand, so that the strategy sees only numbers.
The first layer that reads text installs this in Keras (`install`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax.layers._vocabulary import counted

_PREPARED = "replicax prepared "
_parts_of: weakref.WeakKeyDictionary[Any, TextModelParts] = weakref.WeakKeyDictionary()
_is_installed = False


def install() -> None:
    """Patch Keras; a second call is a no-op."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    # `Model` gets a `__call__` of its own, so that calls of other layers do not change.
    keras.Model.__call__ = _called(keras.Model.__call__)
    _compat.Functional.call = _prepared_call(_compat.Functional.call)
    trainer: Any = _compat.JAXTrainer
    for method in ("fit", "evaluate", "predict", *_compat.ON_BATCH):
        setattr(trainer, method, _with_text(getattr(trainer, method)))


def _called(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = args[0] if args else kwargs.get("inputs")
        functional = _taking_text(self, given)
        if functional is None or _is_symbolic(given):
            return original(self, *args, **kwargs)
        training = kwargs.get("training", args[1] if len(args) > 1 else None)
        return parts(functional)(given, training)

    return call


def _prepared_call(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_prepared(inputs):
            return original(self, inputs, *args, **kwargs)
        return parts(self)(inputs, kwargs.get("training", args[0] if args else None))

    return call


def _with_text(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        functional = _taking_text(self, x)
        if functional is None:
            return original(self, x, *args, **kwargs)
        own = parts(functional)
        if own.device_part is None:
            return own.in_batches(x, *args, **kwargs)
        if kwargs.get("validation_data") is not None:
            kwargs["validation_data"] = own.prepared_data(kwargs["validation_data"], is_pair=True)
        return original(self, own.prepared_data(x), *args, **kwargs)

    return method


def _taking_text(model: Any, given: Any) -> Any:
    """The functional model of a model that reads text, else None; builds a sequential model."""
    if isinstance(model, keras.Sequential):
        model = _compat.functional_of(model) or _built(model, given)
    if model is None or not isinstance(model, _compat.Functional):
        return None
    return model if any(_is_text(tensor) for tensor in model.inputs) else None


def _built(model: Any, given: Any) -> Any:
    first = next(iter(model.layers), None)
    if getattr(first, "compute_dtype", None) != "string":
        return None
    shape = getattr(given, "shape", None)
    model.build((None, *shape[1:]) if shape else (None,))
    return _compat.functional_of(model)


def _is_text(tensor: Any) -> bool:
    return tensor.dtype == "string"


def _is_symbolic(value: Any) -> bool:
    return any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten(value))


def _is_prepared(value: Any) -> bool:
    return isinstance(value, dict) and any(str(key).startswith(_PREPARED) for key in value)


def parts(functional: Any) -> TextModelParts:
    """The host part and the device part of a model that reads text."""
    if functional not in _parts_of:
        _parts_of[functional] = TextModelParts(functional)
    return _parts_of[functional]


@final
class TextModelParts:
    """The host part and the device part of a functional model.

    Raises `UsageError` if text reaches a layer with trainable weights.
    """

    def __init__(self, functional: Any) -> None:
        self._struct, self._inputs = functional.input, functional.inputs
        made: dict[int, Any] = {}  # the host part's results that are not text
        of_text = {id(tensor) for tensor in self._inputs if _is_text(tensor)}
        self._texts = [tensor for tensor in self._inputs if _is_text(tensor)]
        for operation, sources, results in _compat.nodes_of(functional):
            if not any(id(source) in of_text for source in sources):
                continue
            _refuse_devices(operation)
            of_text |= {id(result) for result in results if _is_text(result)}
            made |= {id(result): result for result in results if not _is_text(result)}
        whole = {id(tensor) for tensor in keras.tree.flatten(functional.output)}
        self.device_part: Any = None
        if whole <= {*of_text, *made}:
            self._host_part = keras.Function(self._texts, functional.output)
            return
        self._host_part = keras.Function(self._texts, list(made.values()))
        others = [tensor for tensor in self._inputs if not _is_text(tensor)]
        # A function, because a model would add visible calls to the layers.
        self.device_part = keras.Function([*made.values(), *others], functional.output)

    def __call__(self, inputs: Any, training: bool | None = None) -> Any:
        """Call the model on text, or on prepared inputs."""
        if self.device_part is None:
            return self._on_host(self._flat(inputs))
        prepared = self.prepared(inputs)
        flat = [prepared[_PREPARED + str(number)] for number in range(len(prepared))]
        return _compat.run_graph(self.device_part, flat, training)

    def prepared(self, inputs: Any) -> Any:
        """Run the host part: replace text among the inputs by arrays."""
        if _is_prepared(inputs):
            return inputs
        flat = self._flat(inputs)
        others = [x for x, tensor in zip(flat, self._inputs, strict=True) if not _is_text(tensor)]
        made = keras.tree.flatten(self._on_host(flat))
        return {_PREPARED + str(number): value for number, value in enumerate([*made, *others])}

    def prepared_data(self, data: Any, *, is_pair: bool = False) -> Any:
        """Run the host part on data in any form that `fit` takes."""
        if callable(getattr(data, "map", None)):
            return data.map(self._prepared_batch)
        if is_pair:
            return (self.prepared(data[0]), *data[1:])
        if hasattr(data, "__next__"):
            return (self._prepared_batch(*_as_tuple(batch)) for batch in data)
        if isinstance(data, list | tuple | dict | str) or hasattr(data, "dtype"):
            return self.prepared(data)
        raise UsageError(
            f"A model that reads text cannot read a {type(data).__name__}. Pass arrays of text, a "
            "`Dataset` or a generator; or map the layers that read text over the data set, "
            "`dataset.map(lambda text, y: (vectorize(text), y))`, and start the model after them."
        )

    def in_batches(self, x: Any, *_: Any, **__: Any) -> Any:
        """`predict` of a model that runs on the host completely."""
        if not callable(getattr(x, "map", None)):
            return self(x)
        results = [keras.tree.flatten(self(_as_tuple(batch)[0])) for batch in x]
        joined = [np.concatenate(leaves) for leaves in zip(*results, strict=True)]
        return joined[0] if len(joined) == 1 else joined

    def _prepared_batch(self, x: Any, *rest: Any) -> Any:
        return (self.prepared(x), *rest) if rest else self.prepared(x)

    def _flat(self, inputs: Any) -> list[Any]:
        """The inputs in the order of the model's inputs."""
        struct = self._struct
        if isinstance(struct, dict) and isinstance(inputs, dict):
            return [inputs[name] for name in sorted(struct)]
        if isinstance(inputs, dict):
            return [inputs[tensor.name] for tensor in self._inputs]
        if len(self._inputs) > 1:
            return list(inputs)
        alone = isinstance(inputs, list | tuple) and len(inputs) == 1
        return [inputs[0] if alone and hasattr(inputs[0], "shape") else inputs]

    def _on_host(self, flat: list[Any]) -> Any:
        texts = [x for x, tensor in zip(flat, self._inputs, strict=True) if _is_text(tensor)]
        wanted = [tensor.shape for tensor in self._texts]
        arrays = [_with_rank(x, shape) for x, shape in zip(texts, wanted, strict=True)]
        # All inputs may be one element of a data set, without a batch axis.
        alone = all(array.ndim == len(s) - 1 for array, s in zip(arrays, wanted, strict=True))
        results = self._host_part([array[None] if alone else array for array in arrays])
        return keras.tree.map_structure(lambda r: r[0], results) if alone else results


def _with_rank(value: Any, shape: tuple[Any, ...]) -> np.ndarray:
    """Text as an array; as in Keras, a last axis of size one is added or removed."""
    array = np.asarray(value, dtype=object)
    if array.ndim == len(shape) - 1 and shape[-1] == 1:
        return array[..., None]
    if array.ndim == len(shape) + 1 and array.shape[-1] == 1:
        return array[..., 0]
    return array


def _as_tuple(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _refuse_devices(operation: Any) -> None:
    """Refuse a layer that would make a tensor of text."""
    if getattr(operation, "trainable_variables", None):
        raise UsageError(
            f"Layer '{operation.name}' ({type(operation).__name__}) has weights, so it cannot read "
            "text. Convert the text to numbers before it, as with TextVectorization or "
            "StringLookup."
        )
    is_layer = isinstance(operation, keras.Layer) and not isinstance(operation, keras.Model)
    if is_layer and operation.compute_dtype != "string":
        raise UsageError(
            f"Layer '{operation.name}' ({type(operation).__name__}) cannot read text. "
            "Call a function of `replicax.tf` on the model's input in its place, such as "
            "`tf.reshape`, `tf.concat` or `tf.strings.lower`; or use `dataset.map`."
        )


_SHAPES = {"batch_input_shape", "batch_shape", "input_dim", "input_shape"}


class HostLayer(keras.layers.Layer):
    """A layer without weights that computes on the host, because devices have no text."""

    output_mode: str
    _read_dtype = "string"

    def __init__(self, name: str | None, kwargs: dict[str, Any]) -> None:
        if self._read_dtype == "string":
            install()
        # With a shape Keras would make an input of numbers, and it knows Keras 2's names no more.
        super().__init__(name=name, **{k: kwargs[k] for k in kwargs if k not in _SHAPES})
        # Keras cannot convert text to a tensor, and JAX would cut 64-bit integers.
        self._convert_input_args = False
        self._allow_non_tensor_positional_args = True

    @property
    def compute_dtype(self) -> str:
        """The dtype of the inputs."""
        return self._read_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the inputs."""
        return self._read_dtype

    def build(self, input_shape: Any = None) -> None:
        """No-op: the layer has no weights."""
        self.built = True

    def depth(self) -> int:
        """The width of an encoded row, in other output modes than "int"."""
        raise NotImplementedError  # each layer has its own

    def counts_of(self, ids: np.ndarray) -> np.ndarray:
        """Count each id in each example, whose ids are on the last axis."""
        lead, width = ids.shape[:-1], ids.shape[-1] if ids.ndim else 1
        rows = np.arange(int(np.prod(lead, dtype=int))).repeat(width)
        return counted(ids.reshape(-1), rows, lead, self.depth())

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        is_single = self.output_mode == "one_hot" and not (len(shape) > 1 and shape[-1] == 1)
        return (*(shape if is_single else shape[:-1]), self.depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of the result."""
        kind = "int64" if self.output_mode == "int" else keras.config.floatx()
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=kind)
