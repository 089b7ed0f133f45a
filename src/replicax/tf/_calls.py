"""How every array function is called: with NumPy or JAX, by name in a Keras model; shapes, axes."""

from __future__ import annotations

import functools
import importlib
import reprlib
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.export import is_symbolic_dim

from replicax._core.errors import IndexOutOfBounds, ReplicaxError, UsageError
from replicax._core.host_calls import is_compiling
from replicax._core.lookup import host_value
from replicax._core.tracing import NeedsValues, in_pipeline
from replicax.data._host import HostTensor
from replicax.tf._dtypes import as_dtype

P = ParamSpec("P")
R = TypeVar("R")

_FUNCTIONS: dict[str, Callable[..., Any]] = {}
# Where functions are looked for that a saved model names.
_HOMES = (
    "tf",
    "tf.math",
    "tf.math.special",
    "tf.linalg",
    "tf.nn",
    "tf.image",
    "tf.signal",
    "tf.bitwise",
    "tf.strings",
)
# Tuples, as `X | Y` is made anew in each call; a pipeline asks for every element.
_ARRAYS = (np.ndarray, np.generic)
_ON_HOST = (*_ARRAYS, str, bytes)
_TEXTS = (str, bytes)
_NUMBERS, _LISTS, _NESTS = (int, float, complex), (list, tuple), (list, tuple, dict)
# Elements of a constant that compiled code may hold: as a literal, a long one slows compilation.
MOST_FOLDED = 4096
# What JAX, NumPy and Python raise for shapes, types and axes that do not fit.
REFUSALS = (TypeError, ValueError, IndexError)
_WIDE = (np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.float64))


def array_function(function: Callable[P, R], *, draws: bool = False) -> Callable[P, R]:
    """Give a function what all array functions have.

    Of NumPy arrays it returns a `HostTensor`; of the inputs of a Keras model, which have no values
    yet, it becomes an operation of the model, by its name. In compiled code it computes at once
    what does not depend on the inputs of that code, so that `if` and shapes may use its result;
    but not what `draws` random numbers, which depend on the call and on the replica.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_symbolic((args, kwargs)):
            return operation(function.__name__)(*args, **kwargs)
        if composite := composite_among((args, kwargs)):
            return composite[0].call(call, args, kwargs)
        # As JAX does, NumPy shall say nothing of 0/0.
        with np.errstate(all="ignore"):
            try:
                if is_compiling() and not draws and not _has_open_shapes((args, kwargs)):
                    return hosted(_folded(function, args, kwargs))
                return hosted(function(*args, **kwargs))
            except REFUSALS as error:
                explain(error, function, args, kwargs, __file__)
                raise

    return registered(call)


def in_models(function: Callable[P, R]) -> Callable[P, R]:
    """Of the inputs of a Keras model, make a function an operation of the model, by its name."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_symbolic((args, kwargs)):
            return operation(function.__name__)(*args, **kwargs)
        try:
            return function(*args, **kwargs)
        except REFUSALS as error:
            explain(error, function, args, kwargs, __file__)
            raise

    return registered(call)


def operation(function: str) -> Any:
    """An array function as an operation of a Keras model."""
    from replicax.tf._symbolic import ArrayFunction

    return ArrayFunction(function)


def registered(function: Callable[P, R]) -> Callable[P, R]:
    """Let a Keras model be saved with a function, by its name."""
    _FUNCTIONS[function.__name__] = function
    return function


def explain(error: Exception, function: Any, args: Any, kwargs: Any, caller: str) -> None:
    """Say which call it was, if JAX, NumPy or Python refused a shape, a type or an axis of it.

    Programs catch that as `tf.errors.InvalidArgumentError`, a ValueError. The error stays if the
    calling file raised it: an argument is missing, or has another name.
    """
    if isinstance(error, ReplicaxError | jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code.co_filename == caller:
        return
    given = [*map(_shown, args), *(f"{name}={_shown(kwargs[name])}" for name in kwargs)]
    raise UsageError(
        f"Cannot compute `{function.__name__}({', '.join(given)})`: "
        f"{textwrap.shorten(str(error), 300).rstrip('.')}. Correct the arguments. See docs/tf.md."
    ) from error


def _shown(value: Any) -> str:
    if isinstance(value, _LISTS):
        return f"[{', '.join(map(_shown, value[:6]))}{', …' if len(value) > 6 else ''}]"
    shape = getattr(value, "shape", None)
    if shape is None:
        return reprlib.repr(value)
    return f"{getattr(value, 'dtype', type(value).__name__)}{list(shape)}"


def published(function: Callable[..., Any], name: str, text: str) -> Any:
    """Give a function that a factory made its own name and docstring."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = text
    return function


def _folded(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Compute what is known while code is compiled; a long constant is left to the code.

    Known integers are on the host: what Python computes of them is known, too. Of numbers that may
    have gradients it is computed by JAX, as a tape records no other.
    """
    try:
        with jax.ensure_compile_time_eval():
            found = function(*args, **kwargs)
    except IndexOutOfBounds:  # in a branch that may not be taken
        return function(*args, **kwargs)
    leaves, tree = jax.tree.flatten(found)
    known = [isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) for leaf in leaves]
    pairs = [*zip(leaves, known, strict=True)]
    if sum(leaf.size for leaf, is_known in pairs if is_known) > MOST_FOLDED:
        return function(*args, **kwargs)
    counts = [is_known and leaf.dtype.kind in "biu" for leaf, is_known in pairs]
    return tree.unflatten(
        [np.asarray(leaf) if c else leaf for leaf, c in zip(leaves, counts, strict=True)]
    )


def _has_open_shapes(values: Any) -> bool:
    """Whether a size stands for any number, as Keras' batches do while a model is built."""
    leaves = jax.tree.leaves(values)
    sizes = [size for leaf in leaves for size in getattr(leaf, "shape", None) or (leaf,)]
    return any(map(is_symbolic_dim, sizes))


def named(name: str) -> Callable[..., Any]:
    """The array function of this name."""
    if name not in _FUNCTIONS:
        for home in _HOMES:  # asking for a name loads the module that has it
            getattr(importlib.import_module(f"replicax.{home}"), name, None)
    if name not in _FUNCTIONS:
        raise UsageError(
            f"Cannot load this model: replicax.tf has no array function {name!r}. Load it with "
            "the version of Replicax that saved it."
        )
    return _FUNCTIONS[name]


def is_symbolic(value: Any) -> bool:
    """Whether an input of a Keras model that is being built is in a nest."""
    keras = sys.modules.get("keras")
    return hasattr(keras, "KerasTensor") and bool(_found((value,), keras.KerasTensor))  # pyright: ignore[reportOptionalMemberAccess]


def composite_among(value: Any) -> list[Any]:
    """The sparse and ragged tensors in a nest."""
    module = sys.modules.get("replicax.tf._composite")
    return [] if module is None else _found((value,), module.CompositeTensor)


def _found(values: Any, kind: type) -> list[Any]:
    found = []
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, _NESTS):
            found += _found(value, kind)
        elif isinstance(value, kind):
            found.append(value)
    return found


def hosted(result: Any) -> Any:
    """A result of NumPy, with the `numpy()` of tensors."""
    if isinstance(result, _ARRAYS):
        return result if isinstance(result, HostTensor) else HostTensor.of(result)
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return type(result)(*map(hosted, result))
    if isinstance(result, list | tuple):
        return type(result)(map(hosted, result))
    return result


def numpy_or_jax(*arguments: Any) -> Any:
    """Which of `numpy` and `jax.numpy` computes a function of these arguments.

    NumPy, if there are arrays among them and all are NumPy's, or if there is text: then nothing
    goes to a device. Python's numbers and known integers of compiled code do not count; of them
    alone, NumPy computes in a function of a pipeline, JAX elsewhere.
    """
    if len(arguments) == 1 and type(arguments[0]) is np.ndarray:
        return np
    kinds: set[bool] = set()
    _note_kinds(arguments, kinds)
    return np if kinds == {True} or (not kinds and in_pipeline()) else jnp


def _note_kinds(values: Any, kinds: set[bool]) -> None:
    for value in values:
        if isinstance(value, _ON_HOST):
            if not is_known_integer(value):
                kinds.add(True)
        elif isinstance(value, _LISTS):
            _note_kinds(value, kinds)
        elif value is not None and not isinstance(value, _NUMBERS):
            kinds.add(False)


def is_known_integer(value: Any) -> bool:
    """Whether this is a constant of code that is being compiled, as `_folded` makes it."""
    fits = isinstance(value, HostTensor) and value.dtype.kind in "biu" and value.dtype.itemsize <= 4
    return fits and is_compiling()


def arrays(*values: Any, mask: Any = None) -> tuple[Any, list[Any]]:
    """The module that computes, and the values as its arrays; the mask last, if there is one.

    Python's numbers keep to the types of the arrays beside them; lists of them do, too, if they
    can. None stays None.
    """
    xp = numpy_or_jax(*values, mask)
    kinds = [np.dtype(v.dtype) for v in values if hasattr(v, "dtype")]
    beside = kinds[0] if kinds and kinds[0].kind != "O" else None
    found = [_array(xp, value, beside) for value in values]
    return xp, found if mask is None else [*found, _array(xp, mask, None)]


def apart(*values: Any) -> tuple[Any, list[Any]]:
    """As `arrays`, but each value keeps its own type, as an array and its indices do."""
    xp = numpy_or_jax(*values)
    return xp, [_array(xp, value, None) for value in values]


def array_beside(values: Any, kind: Any) -> Any:
    """A list as a JAX array, for an operation with an array of this type."""
    return _array(jnp, values, np.dtype(kind))


def array(value: Any) -> tuple[Any, Any]:
    """The module that computes, and the value as its array."""
    xp = numpy_or_jax(value)
    return xp, _array(xp, value, None)


def _array(xp: Any, value: Any, beside: Any) -> Any:
    if value is None or isinstance(value, jax.Array | Tracer):
        return value
    if isinstance(value, np.ndarray | np.generic):
        if xp is np:
            return value.view(np.ndarray) if isinstance(value, HostTensor) else np.asarray(value)
        return jnp.asarray(fitting(value))
    if isinstance(value, bool | int | float | complex):
        if xp is np:
            return of_python(value) if beside is None else value  # a weak one
        small = not isinstance(value, int) or -(2**31) <= value < 2**31
        return jnp.asarray(value if small else fitting(value))
    if isinstance(value, str | bytes):
        return HostTensor.of(value).view(np.ndarray)
    if isinstance(value, list | tuple | range):
        return _packed(xp, value, beside)
    return jnp.asarray(value)


def _packed(xp: Any, values: Sequence[Any], beside: Any) -> Any:
    if is_python(values):
        kept = of_python(values)
        if beside is not None and _can_take(kept, beside):
            kept = kept.astype(beside)
        return xp.asarray(fitting(kept) if xp is jnp else kept)
    if any(value is None for value in values):
        got = reprlib.repr(values)
        raise UsageError(f"Cannot make an array of {got}: None is no number. Leave it out.")
    return xp.stack([_array(xp, value, beside) for value in values])


def _can_take(numbers: np.ndarray, kind: np.dtype) -> bool:
    """Whether a type holds these numbers of Python, but for rounding."""
    given = numbers.dtype.kind
    if given in "iu" and kind.kind in "iu":
        limits = np.iinfo(kind)
        return not numbers.size or (limits.min <= numbers.min() and numbers.max() <= limits.max)
    if given in "iu":
        return kind.kind != "b"
    if given == "f":
        return jnp.issubdtype(kind, jnp.inexact)
    return given == kind.kind == "c"


def is_python(values: Any) -> bool:
    """Whether there are only Python's numbers and texts in a nest."""
    if isinstance(values, list | tuple):
        return all(map(is_python, values))
    return isinstance(values, bool | int | float | complex | str | bytes | range)


def of_python(value: Any) -> np.ndarray:
    """A number, text or a nested list of them with the type that TensorFlow gives it."""
    if isinstance(value, str | bytes):
        return HostTensor.of(value).view(np.ndarray)
    try:
        found = np.asarray(value)
    except ValueError as error:
        raise UsageError(
            "Cannot make an array of nested lists of different lengths. Pad them to one length, "
            "for example with `keras.utils.pad_sequences`."
        ) from error
    if found.dtype.kind in "US":
        found = np.asarray(value, object)
        if not all(isinstance(one, _TEXTS) for one in found.flat):
            got = reprlib.repr(value)
            raise UsageError(f"Cannot make one array of texts and numbers: {got}. Make two.")
        return found
    if found.dtype.kind == "O":
        got = reprlib.repr(value)
        raise UsageError(f"No type of 64 bits holds all of {got}. Pass numbers only, or floats.")
    if found.dtype.kind == "f":
        with np.errstate(over="ignore"):  # allowed for 64 bits only, see `fitting`
            return fitting(found).astype(np.float32)
    small = found.dtype == np.int64 and (
        not found.size or (found.min() >= -(2**31) and found.max() < 2**31)
    )
    return found.astype(np.int32) if small else found


def fitting(value: Any) -> Any:
    """The value, if JAX can hold it: 64 bits only with `jax_enable_x64`."""
    held = np.asarray(value)
    if held.dtype not in _WIDE or jax.config.jax_enable_x64 or not held.size:  # pyright: ignore[reportAttributeAccessIssue]
        return value
    if held.dtype.kind == "f":
        largest = np.abs(held[np.isfinite(held)]).max(initial=0.0)
        fits = largest <= np.finfo(np.float32).max
    else:
        limits = np.iinfo(np.int32 if held.dtype.kind == "i" else np.uint32)
        fits = limits.min <= held.min() and held.max() <= limits.max
    if not fits:
        raise UsageError(
            f"{held.dtype} values do not fit into 32 bits, in which JAX computes by default. Call "
            '`jax.config.update("jax_enable_x64", True)` at the top of the program.'
        )
    return value


def numpy_dtype(dtype: Any, xp: Any = np) -> Any:
    """The NumPy type that a `dtype=` means; for JAX the one that it computes with instead."""
    found = as_dtype(dtype).dtype
    return found if xp is np else jax.dtypes.canonicalize_dtype(found)


def axes_of(axis: Any) -> Any:
    """An axis, several, or None, as Python numbers."""
    if axis is None or isinstance(axis, int):
        return axis
    found = np.asarray(axis)
    if found.size and found.dtype.kind not in "iu":
        raise UsageError.of("axis", "an integer, several, or None", axis)
    return tuple(map(int, found.ravel())) if found.ndim else int(found)


def new_axis(axis: Any, rank: int) -> int:
    """The index of a new axis of an array with `rank` axes."""
    found = np.asarray(axis)
    if found.size != 1 or found.dtype.kind not in "iub" or not -rank - 1 <= found <= rank:
        must_be = f"an integer from {-rank - 1} to {rank} for an array of rank {rank}"
        raise UsageError.of("axis", must_be, axis)
    return found.item() % (rank + 1)


def check_divisor(x: Any, y: Any) -> None:
    """Refuse integers divided by a 0 that is at hand: XLA truncates to -1, NumPy to 0."""
    kinds = {np.dtype(getattr(one, "dtype", type(one))).kind for one in (x, y)}
    numbers = host_value(y) if kinds <= {*"biu"} and np.size(x) else None
    if numbers is not None and not numbers.all():
        raise UsageError("Cannot divide integers by 0. Use `tf.math.divide_no_nan`.")


def value_of(value: Any) -> Any:
    """The value of a variable, or of a part of one; any other value as it is."""
    return value.__jax_array__() if hasattr(value, "assign") else value


def static_shape(shape: Any) -> tuple[Any, ...]:
    """A shape as a tuple of numbers."""
    if isinstance(shape, _LISTS):
        return tuple(map(static_size, shape))
    shape = value_of(shape)
    if isinstance(shape, Tracer):
        raise _not_static(shape)
    if isinstance(shape, jax.Array):
        shape = np.asarray(shape)  # its rows would be computed while code is compiled
    if not isinstance(shape, Iterable) or not getattr(shape, "ndim", 1):
        shape = (shape,)
    return tuple(map(static_size, shape))


def static_size(size: Any) -> Any:
    """A size as a number; one that Keras does not know yet as it is."""
    if isinstance(size, int):
        return size
    size = value_of(size)
    if isinstance(size, Tracer):
        raise _not_static(size)
    is_array = isinstance(size, np.ndarray | np.generic | jax.Array)
    if isinstance(size, float | str) or (is_array and size.dtype.kind not in "iub"):
        raise UsageError(f"Sizes must be integers, got {size!r}. Round with `int`.")
    return int(size) if is_array else size


def _not_static(size: Any) -> NeedsValues:
    return NeedsValues(
        f"Cannot use {size} as a shape: compiled code computes it, and XLA needs all shapes "
        "before. Use `x.shape` or `tf.shape(x)`, or pad to a fixed size."
    )


def concrete(value: Any, what: str) -> np.ndarray:
    """The value in host memory, for what has a result whose shape depends on it."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(value)):
        raise NeedsValues(
            f"`{what}` cannot run in compiled code: the shape of its result depends on values. "
            "Call it outside, for example in `dataset.map`, or keep the shape and mask with "
            "`tf.where(mask, x, y)`."
        )
    with jax.ensure_compile_time_eval():  # numbers of Python, too, in compiled code
        return np.asarray(array(value)[1])
