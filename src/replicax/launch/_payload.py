"""A function, its arguments and its results, sent between processes in files without names.

Workers inherit the files. Nobody else can read one, or put another in its place.
"""

from __future__ import annotations

import importlib
import mmap
import pickle
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import IO


CALLED = Path(__file__).with_name("_called.py")  # what a worker runs that calls a function


class Call(NamedTuple):
    """The function that a worker calls, with its arguments."""

    function: Callable[..., Any]
    args: tuple[Any, ...]


def is_name(text: str) -> bool:
    """Whether the text is `module:function` and not a path."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None


def save_call(file: IO[bytes], function: Callable[..., Any] | str, args: tuple[Any, ...]) -> None:
    """Write a call of a function, or of `module:function`, for the workers to read."""
    try:
        data = pickle.dumps(args) if isinstance(function, str) else _by_value((function, args))
    except UsageError:
        raise
    except Exception as error:  # whatever the objects' own methods raise
        raise UsageError(
            f"Cannot pickle {function!r} and its {len(args)} arguments for the workers: "
            f"{error!r}. Create files, locks and devices inside the function."
        ) from error
    name = function if isinstance(function, str) else None
    _write(file, pickle.dumps((list(sys.path), name, data)))


def load_call(descriptor: int) -> Call:
    """Read the call in a worker, which then imports from the same places as the caller."""
    path, name, data = _read(descriptor)
    sys.path[:] = dict.fromkeys([*path, *sys.path])  # another machine has its own places
    if name is None:
        return Call(*pickle.loads(data))
    module, _, attribute = name.partition(":")
    function: Any = importlib.import_module(module)
    for part in attribute.split("."):
        function = getattr(function, part)
    return Call(function, pickle.loads(data))


def save_result(descriptor: int, result: Any) -> None:
    """Write what a worker's function returned; what an earlier attempt has written is replaced."""
    try:
        data = pickle.dumps(result)
    except Exception:
        data = _result_by_value(result)
    with open(descriptor, "r+b", closefd=False) as file:
        file.seek(0)
        file.truncate()
        _write(file, data)


def load_results(files: Sequence[IO[bytes]]) -> list[Any]:
    """Read what the workers' functions returned."""
    return [_read(file.fileno()) for file in files]


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()


def _read(descriptor: int) -> Any:
    """The content of a file, whatever its offset is, which other processes share and move."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        return pickle.loads(data)


def _result_by_value(result: Any) -> bytes:
    try:
        return _cloudpickle().dumps(result)
    except Exception as error:
        raise UsageError(
            f"Cannot pickle the function's result, a {type(result).__name__}: {error!r}. "
            "Return numbers, strings or arrays."
        ) from error


def _by_value(value: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    """Pickle a function with its code, unless the workers can import it."""
    cloudpickle, module = _cloudpickle(), _module_of(value[0])
    if module is None or _can_be_imported(module.__name__):
        return cloudpickle.dumps(value)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(value)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise UsageError(
            "Cannot send a function to the workers because cloudpickle is not installed. Run "
            "`pip install 'replicax[data]'`, or pass the function's name, \"module:function\"."
        ) from None
    return cloudpickle


def _module_of(function: Callable[..., Any]) -> ModuleType | None:
    return sys.modules.get(getattr(function, "__module__", None) or "")


def _can_be_imported(name: str) -> bool:
    """Whether a new process finds a module; test modules, for example, are on no path."""
    top = name.partition(".")[0]
    return top in sys.builtin_module_names or PathFinder.find_spec(top) is not None
