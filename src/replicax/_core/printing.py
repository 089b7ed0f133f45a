"""`print`, also from compiled code; arrays look as in TensorFlow."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._core.host_calls import call_on_host, is_compiling
from replicax._core.placement import to_host
from replicax._core.values import Mirrored, PerReplica, is_distributed

_writing = threading.Lock()


def print(
    *inputs: Any,
    output_stream: Any = None,
    summarize: int | None = 3,
    sep: str = " ",
    end: str = "\n",
    name: str | None = None,
) -> None:
    """Print values; in compiled code, whenever it runs, with the numbers that there are then.

    Inside `run` every replica prints a line of its own, which begins with `[replica 1]`, and with
    `[worker 0, replica 1]` if there are several workers. In `fit` and in an `rx.function` around
    `run` there is one line, with several workers that of `[worker 0]`. A program that ends waits
    for what was not printed yet.

    **Differs from TF:** lines of compiled code may come later than what Python prints, and those
    of different replicas in any order.

    Args:
        inputs: Arrays, numbers, texts, and nests of them.
        output_stream: `sys.stderr`, which is the default, `sys.stdout` or the like; `"file://…"`,
            to append to a file; or a function of the text, such as `logging.info`.
        summarize: How many entries of both ends of an axis are shown; -1 for all.
        sep: What stands between the inputs.
        end: What stands at the end.
        name: Not used.

    Raises:
        UsageError: If the stream is none of these.

    Example:
        >>> import sys
        >>> import numpy as np
        >>> import replicax as rx
        >>> rx.print("loss:", np.float32(0.25), np.arange(9), output_stream=sys.stdout)
        loss: 0.25 [0 1 2 ... 6 7 8]
    """
    del name
    write = _writer(output_stream)
    count = -1 if summarize is None else summarize
    slots: list[Any] = []
    deferred = functools.partial(_deferred, slots=slots, count=count)
    nests = [jax.tree.map(deferred, one, is_leaf=_is_whole) for one in inputs]
    line = _PrintTemplate(nests, sep, end, write)
    if not is_compiling(*slots):
        line.print("", *(ends(to_host(value), count) for value in slots))
        return
    if not all(isinstance(size, int) for value in slots for size in value.shape):
        return  # Keras computes shapes only
    frame = current_frame()
    context = (frame.replica or frame.merging) if frame else None
    cut = [ends(value, count) for value in slots]
    if context is not None and context.num_replicas_in_sync > 1:
        call_on_host(line.print_replica, context.replica_id_in_sync_group, *cut)
    else:
        worker = f"[worker {jax.process_index()}] " if jax.process_count() > 1 else ""
        call_on_host(functools.partial(line.print, worker), *cut)


@final
@dataclass(frozen=True)
class _DeferredText:
    """A leaf whose text is made from the arrays of the slots, when they are computed."""

    text: Callable[[Sequence[np.ndarray]], str]


def _is_whole(leaf: Any) -> bool:
    return leaf is None or is_distributed(leaf)


def _deferred(leaf: Any, slots: list[Any], count: int) -> Any:
    if isinstance(leaf, PerReplica):
        parts = {r: _deferred(one, slots, count) for r, one in leaf.by_replica().items()}

        def listed(arrays: Sequence[np.ndarray]) -> str:
            lines = (f"  {r}: {part.text(arrays)}" for r, part in parts.items())
            return "PerReplica:{\n" + ",\n".join(lines) + "\n}"

        return _DeferredText(listed)
    if isinstance(leaf, Mirrored):
        leaf = leaf.value
    if isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind in "OSU":  # not for devices
        return _DeferredText(lambda _: array_text(ends(leaf, count), leaf.shape, count))
    if (array := getattr(leaf, "__jax_array__", None)) is not None:  # of a variable
        leaf = array()
    if not isinstance(leaf, jax.Array | Tracer | np.ndarray | np.generic):
        return leaf
    slots.append(leaf)
    number, shape = len(slots) - 1, tuple(leaf.shape)
    return _DeferredText(lambda arrays: array_text(arrays[number], shape, count))


@final
@dataclass(frozen=True)
class _PrintTemplate:
    inputs: list[Any]
    sep: str
    end: str
    write: Callable[[str], Any]

    def print(self, prefix: str, *arrays: np.ndarray) -> None:

        def text(leaf: Any) -> str:
            return leaf.text(arrays) if isinstance(leaf, _DeferredText) else str(leaf)

        line = self.sep.join(nest_text(value, text) for value in self.inputs)
        with _writing:
            self.write(f"{prefix}{line}{self.end}")

    def print_replica(self, replica: np.ndarray, *arrays: np.ndarray) -> None:
        worker = f"worker {jax.process_index()}, " if jax.process_count() > 1 else ""
        self.print(f"[{worker}replica {int(replica)}] ", *arrays)


def _writer(stream: Any) -> Callable[[str], Any]:
    if stream is None:
        return lambda text: _written(sys.stderr, text)
    if isinstance(stream, str) and stream.startswith("file://"):
        return functools.partial(_append, Path(stream.removeprefix("file://")))
    if hasattr(stream, "write"):
        return functools.partial(_written, stream)
    if callable(stream):
        return lambda text: stream(text.removesuffix("\n"))
    raise UsageError.of(
        "output_stream",
        "sys.stderr, sys.stdout, a path such as 'file:///tmp/log', or a function such as "
        "logging.info",
        stream,
    )


def _written(stream: Any, text: str) -> None:
    stream.write(text)
    if hasattr(stream, "flush"):
        stream.flush()


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def ends(array: Any, count: int) -> Any:
    """The first and last `count` entries of each longer axis; all if `count` is negative."""
    if count < 0:
        return array
    for axis, size in enumerate(array.shape):
        if size > 2 * count:
            kept = [*range(count), *range(size - count, size)]
            array = array.take(np.array(kept, np.int32), axis=axis)
    return array


def array_text(array: Any, shape: Sequence[int], count: int, depth: int = 1) -> str:
    """The text of an array of this shape; `array` is the result of `ends`."""
    if not shape:
        return _entry(array[()] if isinstance(array, np.ndarray) else array)
    inner = [array_text(row, shape[1:], count, depth + 1) for row in array]
    if 0 <= 2 * count < shape[0]:
        inner.insert(count, "...")
    between = " " if len(shape) == 1 else "\n" * (len(shape) - 1) + " " * depth
    return f"[{between.join(inner)}]"


def _entry(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    if isinstance(value, str | bytes):
        return f'"{value.decode(errors="replace") if isinstance(value, bytes) else value}"'
    if np.issubdtype(type(value), np.complexfloating):
        return f"({_number(value.real)},{_number(value.imag)})"
    return str(value) if isinstance(value, np.integer) else _number(value)


def _number(value: Any) -> str:
    # The short text if it is exact; else all significant digits.
    digits = 15 if getattr(value, "dtype", None) == np.float64 else 6
    short = f"{float(value):.{digits}g}"
    same = type(value)(float(short)) == value or value != value
    return short if same else f"{float(value):.{digits + (2 if digits == 15 else 3)}g}"


def nest_text(value: Any, leaf: Any, *, inside: bool = False) -> str:
    """A nest as text; `leaf` makes the text of a leaf.

    A sparse or ragged tensor is shown as its arrays and its other fields.
    """
    if isinstance(value, str) and inside:
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (f"{key!r}: {nest_text(item, leaf, inside=True)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = [nest_text(item, leaf, inside=True) for item in value]
        if isinstance(value, list):
            return f"[{', '.join(items)}]"
        names = getattr(value, "_fields", None)
        if names:
            pairs = (f"{name}={item}" for name, item in zip(names, items, strict=True))
            return f"{type(value).__name__}({', '.join(pairs)})"
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    flatten = getattr(value, "tree_flatten", None)
    if flatten is not None:
        arrays, rest = flatten()
        items = [nest_text(item, leaf, inside=True) for item in (*arrays, rest)]
        return f"{type(value).__name__}({', '.join(items)})"
    return leaf(value)
