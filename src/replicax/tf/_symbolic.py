"""Array functions of the inputs of a Keras model: an operation of the model, saved by its name.

Sizes that the model does not know while it is built are tried: `tf.shape` of `Input((None, d))` is
an operation whose result is computed with, passed on as a shape and used in slices; what shapes
come of that is found by carrying the code out with example sizes. A size of a result that is not
the same for two examples is unknown, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import keras
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._program.explain import raise_explained
from replicax.data._host import HostTensor
from replicax.tf._calls import array_function, named, operation
from replicax.tf._dtypes import DType
from replicax.tf._keras2 import around
from replicax.tf._tensors import class_of_arrays


@final
@keras.saving.register_keras_serializable("replicax")
class ArrayFunction(keras.Operation):
    """An array function of `replicax.tf` in a functional model."""

    def __init__(self, function: str, name: str | None = None) -> None:
        super().__init__(name=name)
        self.function, self._spec = function, None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What the function gives, once there are values."""
        return named(self.function)(*args, **kwargs)

    def symbolic_call(self, *args: Any, **kwargs: Any) -> Any:
        """Note the call in the model, with arguments that can be saved."""
        plain: Any = keras.tree.map_structure(_plain, (args, kwargs))
        self._spec = found = self.compute_output_spec(*plain[0], **plain[1])
        try:
            is_known = isinstance(found, Sizes) and found.known is not None
            return found.known if is_known else super().symbolic_call(*plain[0], **plain[1])
        finally:
            self._spec = None

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of what the function gives."""
        if self._spec is not None:  # found already: Keras asks as it notes the call
            return self._spec
        leaves = keras.tree.flatten((args, kwargs))
        if self.function == "shape" or any(
            isinstance(leaf, Sizes) or is_text_input(leaf) for leaf in leaves
        ):
            return spec_of(self.call, args, kwargs)
        # Dense ones: Keras says "sparse" of what is multiplied by a number.
        tensors = [
            keras.KerasTensor(leaf.shape, leaf.dtype)
            for leaf in leaves
            if isinstance(leaf, keras.KerasTensor)
        ]

        def call(*values: Any) -> Any:
            rest = iter(values)
            filled = [next(rest) if isinstance(x, keras.KerasTensor) else x for x in leaves]
            own, named_ = keras.tree.pack_sequence_as((args, kwargs), filled)
            return self.call(*own, **named_)

        # Of the tensors alone: Keras would take the numbers of a shape for values of compiled code.
        return _Traced(call).compute_output_spec(*tensors)

    def get_config(self) -> dict[str, Any]:
        """What it is made of again."""
        return {"function": self.function, "name": self.name}


@final
class _Traced(keras.Operation):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def call(self, *args: Any) -> Any:
        """What the function gives."""
        return self._function(*args)


def _plain(argument: Any) -> Any:
    """The name of a type of numbers, and constant text as Python's; others are what they are."""
    if isinstance(argument, HostTensor) and argument.dtype == object:
        return argument.tolist()
    return argument.name if isinstance(argument, DType) else argument


# Pairs of examples, with many divisors. Strides of convolutions need large ones; a table of
# positions that is cut to the length of its input may have fewer rows.
_TRIED = ((120, 240), (8, 12))
_OF_TRACES = jax.errors.JAXTypeError, jax.errors.JAXIndexError
# Operators of a size, and the functions that they are.
_OPERATORS = {
    "add": "add",
    "sub": "subtract",
    "mul": "multiply",
    "floordiv": "floordiv",
    "truediv": "truediv",
    "mod": "floormod",
}


@final
class Sizes(keras.KerasTensor):
    """Whole numbers that follow from the sizes of a model's inputs."""

    def __init__(self, examples: Mapping[int, np.ndarray]) -> None:
        one = next(iter(examples.values()))
        super().__init__(one.shape, one.dtype.name)
        self.examples = examples
        _let_arrays_be_sliced_by_sizes()

    def __getitem__(self, key: Any) -> Any:
        return _element_of(self, key)

    def __neg__(self) -> Any:
        return operation("negative")(self)

    @property
    def known(self) -> Any:
        """The numbers, if they are the same for all sizes, or None."""
        one, *others = self.examples.values()
        return one if all(np.array_equal(one, other) for other in others) else None

    def __index__(self) -> int:
        raise UsageError(
            "Cannot use a size of a model's input as a number: it is not known while the model is "
            "built. Convert the NumPy array with `tf.constant`, or move the code to a layer's "
            "`call`."
        )

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))


def shape_of(tensor: Any) -> Any:
    """The sizes of an input of a model, as far as they are not known a part of the model."""
    known = tuple(tensor.shape)
    if None not in known:
        return HostTensor.of(np.array(known, np.int32))
    return operation("shape")(tensor)


@array_function
def element(values: Any, parts: Sequence[Any]) -> Any:
    """An array, indexed by numbers and slices, which a model can be saved with."""
    return values[tuple(_KINDS[kind](*numbers) for kind, *numbers in parts)]


_KINDS: dict[str, Callable[..., Any]] = {
    "slice": lambda *ends: slice(*(None if end is None else int(end) for end in ends)),
    "at": lambda value: value,
    "new": lambda: None,
    "rest": lambda: ...,
}


def _element_of(values: Any, key: Any) -> Any:
    parts: list[list[Any]] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, slice):
            parts.append(["slice", part.start, part.stop, part.step])
        elif part is None or part is ...:
            parts.append(["new" if part is None else "rest"])
        else:
            parts.append(["at", part])
    return operation("element")(values, parts)


def spec_of(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The specs of what a function gives of inputs of a model and of their sizes."""
    found, errors = {}, []
    for size in np.ravel(_TRIED).tolist():
        try:
            found[size] = _tried(call, args, kwargs, size)
        except Exception as error:
            errors.append(error)
    if not any(all(size in found for size in pair) for pair in _TRIED):
        raise_explained(errors[0])
    leaves = keras.tree.flatten((args, kwargs))
    common = functools.partial(_common, list(found), are_sizes=not any(map(is_text_input, leaves)))
    return keras.tree.map_structure(common, *found.values())


def _tried(call: Callable[..., Any], args: Any, kwargs: Any, size: int) -> Any:
    """What a function gives if this is the size that is not known."""
    leaves, found = keras.tree.flatten((args, kwargs)), []
    on_host = any(map(is_text_input, leaves))
    leaves = [_known(x, size, on_host=on_host) for x in leaves]
    is_input = [isinstance(x, keras.KerasTensor) for x in leaves]

    def traced(*values: Any) -> Any:
        rest = iter(values)
        given = [next(rest) if is_in else x for x, is_in in zip(leaves, is_input, strict=True)]
        own, named = keras.tree.pack_sequence_as((args, kwargs), given)
        found.append(call(*own, **named))
        return [leaf for leaf in jax.tree.leaves(found[0]) if isinstance(leaf, Tracer)]

    inputs = [x for x, is_in in zip(leaves, is_input, strict=True) if is_in]
    jax.eval_shape(traced, *(jax.ShapeDtypeStruct(_filled(x, size), x.dtype) for x in inputs))
    return found[0]


def _known(leaf: Any, size: int, *, on_host: bool) -> Any:
    """Sizes, and text with what it meets, as arrays: they are not computed on devices."""
    if isinstance(leaf, Sizes):
        return leaf.examples[size]
    if not on_host or not isinstance(leaf, keras.KerasTensor):
        return leaf
    shape = _filled(leaf, size)
    # Zeros are numbers, too, for functions that read them.
    return np.full(shape, "0", object) if is_text_input(leaf) else np.zeros(shape, leaf.dtype)


def is_text_input(leaf: Any) -> bool:
    """Whether this is text of a model that is being built."""
    return isinstance(leaf, keras.KerasTensor) and leaf.dtype == "string"


def _filled(tensor: Any, size: int) -> tuple[int, ...]:
    return tuple(size if known is None else known for known in tensor.shape)


def _common(sizes: Sequence[int], *found: Any, are_sizes: bool = True) -> Any:
    """The spec of a number or array that is the one or the other for these example sizes.

    In it a size that differs is None; whole numbers are `Sizes`, if they follow from sizes.
    """
    if not hasattr(found[0], "shape"):
        return found[0]
    shapes = {tuple(np.shape(one)) for one in found}
    if are_sizes and len(shapes) == 1 and all(map(_are_sizes, found)):
        return Sizes(dict(zip(sizes, map(HostTensor.of, found), strict=True)))
    axes = zip(*(one.shape for one in found), strict=True)
    shape = [of_all[0] if len(set(of_all)) == 1 else None for of_all in axes]
    is_text = found[0].dtype == np.dtype(object)
    kind = "string" if is_text else keras.backend.standardize_dtype(found[0].dtype)
    return keras.KerasTensor(shape, kind)


def _are_sizes(value: Any) -> bool:
    is_known = isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "bi"
    return is_known and value.ndim <= 1


def trying_sizes(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Keras' `compute_output_spec`, with example sizes where its symbols for sizes do not do."""

    def spec(self: Any, args: Any, kwargs: Any, size: int) -> Any:
        return original(self, *_closed(args, size), **_closed(kwargs, size))

    try:
        return original(self, *args, **kwargs)
    except Exception as error:
        inputs = [x for x in keras.tree.flatten((args, kwargs)) if _is_open(x)]
        last, before = error, error.__context__
        for pair in _TRIED if inputs else ():
            try:
                found = [spec(self, args, kwargs, size) for size in pair]
                return keras.tree.map_structure(functools.partial(_common, pair), *found)
            except Exception as other:
                last = other
        if not isinstance(before, _OF_TRACES):
            raise
        if not isinstance(last.__context__, _OF_TRACES):  # known sizes leave another mistake
            raise last from None
        raise_explained(before)  # Keras makes another of its class, without a text


def _is_open(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor) and None in value.shape


def _closed(arguments: Any, size: int) -> Any:
    def close(x: Any) -> Any:
        return keras.KerasTensor(_filled(x, size), x.dtype) if _is_open(x) else x

    return keras.tree.map_structure(close, arguments)


@functools.cache
def _let_arrays_be_sliced_by_sizes() -> None:
    """In a program that asks for open sizes, arrays take them as ends of slices."""
    for kind in (class_of_arrays(), HostTensor, keras.KerasTensor, _compat.KerasVariable):
        around(kind, "__getitem__", _sliced_by_sizes)


def _sliced_by_sizes(original: Callable[..., Any], self: Any, /, key: Any) -> Any:
    parts = key if type(key) is tuple else (key,)
    ends = (e for p in parts for e in ((p.start, p.stop) if type(p) is slice else (p,)))
    if any(type(end) is Sizes for end in ends):
        return _element_of(self, key)
    return original(self, key)


def _operator(function: str, *, is_reversed: bool) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        pair = (other, self) if is_reversed else (self, other)
        return operation(function)(*pair)

    return operate


for _name, _function in _OPERATORS.items():
    setattr(Sizes, f"__{_name}__", _operator(_function, is_reversed=False))
    setattr(Sizes, f"__r{_name}__", _operator(_function, is_reversed=True))
