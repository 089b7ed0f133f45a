"""The choice of functions to convert: the user's with conditions or loops, and their callers.

Also the functions of `tf.autograph`.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax._core import seams
from replicax._core.tracing import is_traced

_LIBRARIES = {"absl", "einops", "flax", "grain", "jax", "jaxlib", "keras", "malt", "matplotlib"}
_LIBRARIES |= {"numpy", "optax", "pandas", "ray", "replicax", "scipy", "sklearn", "tensorflow"}


class Mode(threading.local):
    """Whether functions are converted: not within `do_not_convert`."""

    on = True


_mode = Mode()


@contextlib.contextmanager
def converting(on: bool) -> Generator[None, None, None]:
    """Convert the functions that are called in a `with` block, or do not."""
    before, _mode.on = _mode.on, on
    try:
        yield
    finally:
        _mode.on = before


def call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    autograph: bool | None = None,
) -> Any:
    """Call a function that is traced; `autograph=None` does as the function around it says."""
    wanted = _mode.on if autograph is None else autograph
    with converting(wanted):
        if wanted and is_traced() and needs_converting((fn, args, kwargs)):
            return converted_call(fn, tuple(args), dict(kwargs))
        return fn(*args, **kwargs)


def is_users(module: str) -> bool:
    """Whether a module is the user's, by its name."""
    top = module.partition(".")[0]
    return top not in _LIBRARIES and (top == "__main__" or top not in sys.stdlib_module_names)


def needs_converting(thing: Any, seen: set[int] | None = None) -> bool:
    """Whether a function of the user's decides or loops, or may call one that does."""
    seen = set() if seen is None else seen
    if len(seen) > _MANY:
        return True
    if id(thing) in seen:
        return False
    seen.add(id(thing))
    reached: list[Any] = []
    if isinstance(thing, types.FunctionType):
        is_converted = hasattr(thing, "autograph_info__")
        if not is_converted and is_users(thing.__globals__.get("__name__", "")):
            codes = _codes_in(thing.__code__)
            if any(map(_decides, codes)):
                return True
            names = {name for code in codes for name in code.co_names}
            reached = [thing.__globals__[name] for name in names if name in thing.__globals__]
            reached += [_content(cell) for cell in thing.__closure__ or ()]
    elif isinstance(thing, types.MethodType):
        reached = [thing.__func__, thing.__self__]
    elif isinstance(thing, functools.partial):
        reached = [thing.func, thing.args, thing.keywords]
    elif isinstance(thing, list | tuple):
        reached = [*thing[:100]]
    elif isinstance(thing, dict):
        reached = [*thing.values()][:100]
    elif isinstance(thing, types.ModuleType):
        return is_users(thing.__name__)
    elif isinstance(thing, type):
        owners = [owner for owner in thing.__mro__ if is_users(owner.__module__)]
        reached = [getattr(v, "__func__", v) for owner in owners for v in vars(owner).values()]
        reached = [value for value in reached if isinstance(value, types.FunctionType)]
    elif not isinstance(thing, jax.Array | Tracer) and is_users(type(thing).__module__):
        reached = [type(thing), *getattr(thing, "__dict__", {}).values()]
    return any(needs_converting(value, seen) for value in reached)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _codes_in(code: types.CodeType) -> list[types.CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return [code, *(found for one in inner for found in _codes_in(one))]


# Builtins that are replaced; the largest number of objects of a program that are searched for them.
_ASKING, _MANY = ("float", "int", "max", "min", "range"), 5000


@functools.lru_cache(maxsize=1024)
def _decides(code: types.CodeType) -> bool:
    """Whether a function has a statement, an operator or a builtin that asks for a value."""
    before = ["", ""]
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        decides = name.startswith(("POP_JUMP", "JUMP_IF", "FOR_ITER", "UNARY_NOT"))
        if name == "LOAD_GLOBAL" and instruction.argval in _ASKING:
            return True
        if decides and "WITH_EXCEPT_START" not in before:  # the end of a `with`
            return True
        before = [before[1], name]
    return False


def converted_call(f: Any, args: Any, kwargs: Any, scope: Any = None) -> Any:
    """A call in a rewritten function: of a function that is rewritten, too, if it is the user's."""
    from malt.operators import py_builtins

    kwargs = kwargs or {}
    if isinstance(f, types.BuiltinFunctionType | type):
        if f not in (eval, globals, locals, super) or scope is None:
            return _BUILTINS.get(f, f)(*args, **kwargs)
        in_its_frame = getattr(py_builtins, f"{f.__name__}_in_original_context")
        return in_its_frame(scope) if f in (globals, locals) else in_its_frame(f, args, scope)
    if isinstance(f, functools.partial):
        return converted_call(f.func, (*f.args, *args), {**f.keywords, **kwargs}, scope)
    if (getattr(f, "__module__", None) or "").startswith(("jax.", "replicax.")):  # `tf.map_fn`
        args = [_as_converted(arg) if isinstance(arg, _FUNCTIONS) else arg for arg in args]
    return _as_converted(f)(*args, **kwargs)


_FUNCTIONS = types.FunctionType | types.MethodType


def _as_converted(f: Any) -> Callable[..., Any]:
    """The function, rewritten if it is the user's and can be."""
    if isinstance(f, types.MethodType):
        new = _as_converted(f.__func__)
        return f if new is f.__func__ else types.MethodType(new, f.__self__)
    if not isinstance(f, types.FunctionType):
        own = inspect.getattr_static(type(f), "__call__", None)
        return types.MethodType(_as_converted(own), f) if isinstance(own, _FUNCTIONS) else f
    is_converted = hasattr(f, "autograph_info__") or f.__code__ in seams.unconverted
    if is_converted or not is_users(f.__globals__.get("__name__", "")):
        return f
    try:
        if f.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            raise TypeError("generators are not converted")
        from replicax.tf._autograph.converting import converted

        return converted(f)
    except Exception as error:  # whatever malt cannot do: the function runs as it is
        seams.unconverted[f.__code__] = str(error).partition("\n")[0] or type(error).__name__
        return f


def _cast(kind: type) -> Callable[..., Any]:
    def cast(*args: Any, **kwargs: Any) -> Any:
        from replicax.tf._autograph.staged import undecided

        if len(args) == 1 and undecided(args[0]):
            return jnp.asarray(getattr(args[0], "value", args[0])).astype(kind)
        return kind(*args, **kwargs)

    return cast


def _range(*args: Any) -> Any:
    from replicax.tf._flow.ranges import range as range_of_arrays

    ends = [getattr(end, "value", end) for end in args]
    traced = any(isinstance(end, Tracer) for end in ends)
    return range_of_arrays(*ends) if traced else range(*args)


def _extreme(plain: Callable[..., Any], of_arrays: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 1 and not kwargs and any(isinstance(arg, Tracer) for arg in args):
            return functools.reduce(of_arrays, args)
        return plain(*args, **kwargs)

    return extreme


# Functions of Python that would ask an array of compiled code for its value.
_BUILTINS: dict[Any, Callable[..., Any]] = {
    float: _cast(float),
    int: _cast(int),
    range: _range,
    max: _extreme(max, jnp.maximum),
    min: _extreme(min, jnp.minimum),
}


def do_not_convert(func: Callable[..., Any] | None = None) -> Any:
    """A function that runs as it is written, with the functions that it calls."""
    if func is None:
        return do_not_convert
    if not (inspect.isfunction(func) or inspect.ismethod(func)):
        return func

    @functools.wraps(func)
    def as_written(*args: Any, **kwargs: Any) -> Any:
        with converting(False):
            return func(*args, **kwargs)

    vars(as_written)["autograph_info__"] = None  # what malt marks functions by
    return as_written


def set_verbosity(level: int, alsologtostdout: bool = False) -> None:
    """Nothing: what could not be converted is said by the error that follows from it."""
    del level, alsologtostdout


def trace(*args: Any) -> None:
    """Nothing; `print` runs while a function is traced."""
    del args


def to_code(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> str:
    """The source that a function is converted to."""
    from replicax.tf._autograph.converting import code_of  # loads malt

    return code_of(entity)


def to_graph(
    entity: Callable[..., Any], recursive: bool = True, experimental_optional_features: Any = None
) -> Callable[..., Any]:
    """The function that a function is converted to."""
    from replicax.tf._autograph.converting import converted  # loads malt

    return converted(getattr(entity, "python_function", entity))
