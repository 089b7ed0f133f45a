"""`tf.range`: an array of numbers, and what compiled code makes of a loop over it.

A loop over a short range is written out in the program. A function that loops over a long one, or
over one whose end is an argument, runs as plain Python instead.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, NoReturn, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.tracing import NeedsValues, current_reader, refuse_to_loop
from replicax._program.iterator_inputs import MAX_UNROLLED
from replicax.data._host import Unchanging
from replicax.tf._calls import is_symbolic, numpy_dtype, operation, registered, value_of

_MOST = 2**31 - 1  # what JAX counts in 32 bits


@registered
def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range"
) -> Any:
    """Numbers from `start` up to `limit`, which is not among them.

    **Differs from TF:** a loop over up to 16 of them is written out; one that takes elements of an
    iterator makes the `tf.function` around it run as plain Python.

    Returns:
        An array that can be looped over; if an argument is an array of compiled code, something
        that can only be looped over.
    """
    start, limit = (0, start) if limit is None else (start, limit)
    if is_symbolic((start, limit, delta)):
        return operation("range")(start, limit, delta, dtype)
    ends = [_number(value) for value in (start, limit, delta)]
    if any(isinstance(end, Tracer) for end in ends):
        return TracedRange(*ends)
    if dtype is not None:
        wanted = numpy_dtype(dtype)
    else:
        typed = [end for end in ends if hasattr(end, "dtype")]
        default = np.float32 if any(isinstance(end, float) for end in ends) else np.int32
        wanted = np.result_type(*typed) if typed else np.dtype(default)
        if default is np.float32 and wanted.kind in "iu":
            wanted = np.dtype(default)
    given = ends
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        try:
            if wanted.kind == "f":  # counted in its own precision, as TensorFlow does
                ends = [wanted.type(end) for end in ends]
            first, last, step = ends
            count = np.ceil((last - first) / step) if step else 0
        except OverflowError:  # of Python's integers
            first, step, count = 0, 1, np.inf
    if not step:
        raise UsageError.of("delta", f"another number than 0 as {wanted}", given[2])
    said = "`tf.range` cannot count from {} to {} in steps of {} as {}".format(*given, wanted)
    if not np.isfinite(count):
        raise UsageError(
            f"{said}. Pass finite numbers, or a `dtype` with room for them, such as 'float64'."
        )
    if count > _MOST:
        raise UsageError(
            f"{said}: these are {count:.3g} numbers, and an array holds {_MOST:,}. Correct an end, "
            "or loop over Python's `range`. See docs/tf.md."
        )
    if wanted.kind != "f":
        return np.arange(*ends, dtype=wanted).view(Range)
    return (first + np.arange(max(0, int(count)), dtype=wanted) * step).view(Range)


def _number(value: Any) -> Any:
    value = value_of(value)
    if isinstance(value, jax.Array) and not isinstance(value, Tracer):
        return np.asarray(value)[()]
    return value


@final
class Range(Unchanging):
    """The array of a `tf.range`: loops over it are watched while a function is traced."""

    def numpy(self) -> np.ndarray:
        """The plain array."""
        return self.view(np.ndarray)

    def __iter__(self) -> Iterator[Any]:
        reader = current_reader()
        if reader is not None and len(self) > MAX_UNROLLED:
            reader.loop(f"loops over a `tf.range` of {len(self)}")
        return (self[number, ...] for number in builtins.range(len(self)))


@final
class TracedRange:
    """A range whose end is an array of compiled code: it can be looped over in plain Python."""

    def __init__(self, start: Any, limit: Any, delta: Any) -> None:
        self.start, self.limit, self.delta = start, limit, delta

    def __iter__(self) -> NoReturn:
        refuse_to_loop("loops over a `tf.range` of an argument")
        self._misuse()

    def _misuse(self, *_: Any) -> NoReturn:
        raise NeedsValues(
            "Cannot use this `tf.range` as an array: compiled code computes its end, and XLA "
            "needs fixed sizes. Take the end from a shape, such as `x.shape[0]`, or loop with "
            "`tf.while_loop`."
        )

    __array__ = __jax_array__ = __len__ = __getitem__ = __add__ = __radd__ = __mul__ = _misuse
    __rmul__ = __sub__ = __rsub__ = __truediv__ = _misuse
