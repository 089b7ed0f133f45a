"""Operators of rewritten functions: Python's control flow where Python can decide, or JAX's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from malt.core.converter import STANDARD_OPTIONS as STD
from malt.impl.api import autograph_artifact
from malt.operators.function_wrappers import FunctionScope, with_function_scope
from malt.operators.variables import UndefinedReturnValue

from replicax._core.errors import UsageError
from replicax._program.explain import current_line
from replicax._program.iterator_inputs import MAX_UNROLLED
from replicax.data._host import HostTensor
from replicax.tf._autograph.calling import converted_call
from replicax.tf._autograph.staged import State, Undefined, branch, loop, undecided
from replicax.tf._debugging import Assert
from replicax.tf._flow.ranges import Range, TracedRange

__all__ = [
    "STD",
    "FunctionScope",
    "Undefined",
    "UndefinedReturnValue",
    "autograph_artifact",
    "converted_call",
    "with_function_scope",
]

# The most rounds of a loop on a tensor with a known value that are written out: the program of a
# longer one would take long to compile. Unlike the program's own loop, these rounds have gradients.
_MOST_WRITTEN_OUT = 100

# The most elements of an endless iterator that Python goes through: after them, a `break` that it
# cannot decide is taken for one that never comes.
_MOST_GUARDED = 1000


def ld(value: Any) -> Any:
    """A variable, as it is read."""
    return value.read() if isinstance(value, Undefined) else value


def ldu(load: Callable[[], Any], name: str) -> Any:
    """An attribute or an item that may not be there."""
    try:
        return load()
    except (KeyError, AttributeError, NameError):
        return Undefined(name)


def if_stmt(cond: Any, body: Any, orelse: Any, get: Any, put: Any, names: Any, count: int) -> None:
    """`if`."""
    _if(cond, (body, orelse), State(get, put, names), count)


def guard_stmt(
    cond: Any, body: Any, orelse: Any, get: Any, put: Any, names: Any, count: int
) -> None:
    """The code that `return`, `break` or `continue` skips: nobody reads names left unassigned."""
    _if(cond, (body, orelse), State(get, put, names), count, fills=True)


def _if(cond: Any, branches: Any, state: State, count: int, *, fills: bool = False) -> None:
    if undecided(cond):
        branch(cond, branches, state, count, fills=fills)
    else:
        branches[0 if cond else 1]()


def if_exp(cond: Any, if_true: Any, if_false: Any, text: str) -> Any:
    """`a if cond else b`."""
    found: list[Any] = [(Undefined(text),)]

    def of(value: Callable[[], Any]) -> Callable[[], None]:
        return lambda: found.append((value(),))

    _if(cond, (of(if_true), of(if_false)), State(lambda: found[-1], found.append, (text,)), 1)
    return found[-1][0]


def while_stmt(test: Any, body: Any, get: Any, put: Any, names: Any, opts: Any) -> None:
    """`while`: Python's as long as it can decide, unless it takes many rounds on a tensor."""
    for done in itertools.count():
        more = test()
        if undecided(more) or (done >= _MOST_WRITTEN_OUT and isinstance(more, HostTensor)):
            break
        if not more:
            return
        body()
    most = opts.get("maximum_iterations")
    loop(lambda number: test(), lambda number: body(), State(get, put, names), most=most)


def for_stmt(
    iterated: Any, more: Any, body: Any, get: Any, put: Any, names: Any, opts: Any
) -> None:
    """`for`: Python's, but for long loops over numbers and rows of arrays."""
    state, most = State(get, put, names), opts.get("maximum_iterations")
    elements = _elements_of(iterated, MAX_UNROLLED if most is None else 0)
    if elements is not None:
        rounds, element = elements
        test = None if more is None else lambda number: more()
        loop(test, lambda number: body(element(number)), state, rounds, most)
        return
    guarded, go_on = 0, True if more is None else more()
    if not undecided(go_on) and not go_on:
        return
    for target in iterated:
        if undecided(go_on):
            guarded = _one_more(guarded)
            run, skip = (lambda target=target: body(target)), lambda: None
            branch(go_on, (run, skip), state, len(names))
        else:
            body(target)
        go_on = True if more is None else more()
        if not undecided(go_on) and not go_on:
            return


def _elements_of(iterated: Any, written_out: int) -> tuple[Any, Callable[[Any], Any]] | None:
    """How many elements there are, and one by its number; None for what Python goes through."""
    if isinstance(iterated, TracedRange):
        ends = iterated.start, iterated.limit, iterated.delta
        dtype = jnp.result_type(*ends)
        start, limit, delta = (jnp.asarray(end, dtype) for end in ends)
        rounds = jnp.maximum(jnp.ceil((limit - start) / delta), 0).astype(jnp.int32)
        return rounds, lambda number: start + number.astype(dtype) * delta
    is_rows = isinstance(iterated, Range | jax.Array) and iterated.ndim > 0
    if not is_rows or len(iterated) <= written_out:
        return None
    rows = jnp.asarray(iterated)
    return len(rows), lambda number: lax.dynamic_index_in_dim(rows, number, keepdims=False)


def _one_more(guarded: int) -> int:
    if guarded < _MOST_GUARDED:
        return guarded + 1
    raise UsageError(
        f"Cannot compile this loop, {current_line()}: it runs over more than {_MOST_GUARDED} "
        "Python elements, and an array decides about its `break` or `return`. Loop over "
        "`tf.range`, or write `while`."
    )


def and_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a and b`."""
    first = a()
    return jnp.logical_and(_truth(first), _truth(b())) if undecided(first) else first and b()


def or_(a: Callable[[], Any], b: Callable[[], Any]) -> Any:
    """`a or b`."""
    first = a()
    return jnp.logical_or(_truth(first), _truth(b())) if undecided(first) else first or b()


def not_(a: Any) -> Any:
    """`not a`."""
    return jnp.logical_not(_truth(a)) if undecided(a) else not a


def _truth(value: Any) -> Any:
    return jnp.asarray(getattr(value, "value", value))


def assert_stmt(condition: Any, message: Callable[[], Any]) -> None:
    """`assert`; in compiled code it is a check of `tf.debugging`, as in TensorFlow."""
    if not undecided(condition):
        if not condition:
            text = message()
            raise AssertionError(*([] if text is None else [text]))
        return
    said = message()
    Assert(_truth(condition), [] if said is None else [said])
