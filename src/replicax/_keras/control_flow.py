"""`cond`, `while_loop`, `scan` and their kin for code that reads and writes Keras variables.

JAX's control flow takes pure functions. A branch or a loop's body is traced once to find out which
variables it writes; then it is traced again with their values as inputs and outputs. What it only
reads comes from the scope around, where JAX takes it for an operand by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.capture import CaptureScope
from replicax._keras.tensor_array import materialised


def cond(pred: Any, true_fn: Callable[[], Any], false_fn: Callable[[], Any]) -> Any:
    """One of two branches, by a predicate that compiled code may have computed.

    Variables that a branch writes are written if it is taken.

    Args:
        pred: A scalar; if its value is known now, only that branch is looked at.
        true_fn: A function without arguments.
        false_fn: Another, which returns the same structure.

    Returns:
        What the branch returned.
    """
    pred = _value(pred)
    if not isinstance(pred, Tracer):
        return true_fn() if bool(pred) else false_fn()
    return _in_scope(lambda: _choose(jnp.asarray(pred, bool).astype(int), [false_fn, true_fn]))


def switch_case(
    branch_index: Any, branch_fns: Any, default: Callable[[], Any] | None = None
) -> Any:
    """One of several branches, by its number.

    Args:
        branch_index: An integer scalar.
        branch_fns: Functions without arguments: a list, a dict by number, or pairs.
        default: For numbers that have none; without it, the one of the largest number.

    Returns:
        What the branch returned.
    """
    given = list(branch_fns.items() if isinstance(branch_fns, dict) else branch_fns)
    pairs = given if isinstance(given[0], tuple) else list(enumerate(given))
    by_number = {int(number): fn for number, fn in pairs}
    last = default or by_number[max(by_number)]
    branches = [by_number.get(number, last) for number in range(max(by_number) + 1)]
    index = _value(branch_index)
    if not isinstance(index, Tracer):
        return by_number.get(int(index), last)()
    inside = (index >= 0) & (index < len(branches))
    place = jnp.where(inside, index, len(branches))
    return _in_scope(lambda: _choose(place, [*branches, last]))


def _choose(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    found = [_discover(branch) for branch in branches]
    written = _joined(writes for _, writes in found)
    shapes = [shape for shape, _ in found]
    trees = [jax.tree.structure(shape) for shape in shapes]
    if any(tree != trees[0] for tree in trees):
        raise UsageError(
            "The branches of compiled code return the same structure. Received: "
            f"{trees[0]} and {next(tree for tree in trees if tree != trees[0])}. Which one is "
            "taken is not known before it runs. Return the same from each."
        )
    columns = zip(*map(jax.tree.leaves, shapes), strict=True)
    types = [jnp.result_type(*[leaf.dtype for leaf in column]) for column in columns]

    def pure(branch: Callable[[], Any]) -> Callable[[Any], Any]:
        def call(values: Any) -> Any:
            result, news = _enter(written, values, branch)
            leaves, tree = jax.tree.flatten(result)
            cast = [leaf.astype(dtype) for leaf, dtype in zip(leaves, types, strict=True)]
            return tree.unflatten(cast), news

        return call

    values = [_compat.read(variable) for variable in written]
    result, news = lax.switch(index, [pure(branch) for branch in branches], values)
    _assign(written, news)
    return result


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    *,
    maximum_iterations: Any = None,
) -> Any:
    """A loop in compiled code; in Python, where nothing is traced.

    Args:
        cond: Called with the loop's variables: whether to go on.
        body: Called with them, returns their next values.
        loop_vars: A list or tuple of nests.
        maximum_iterations: How many rounds there are at most. With it, gradients flow through
            the loop; JAX has none of a loop without a known end.

    Returns:
        The last values, in the structure of `loop_vars`.
    """
    start = list(loop_vars) if isinstance(loop_vars, list | tuple) else [loop_vars]
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(start))
    if _compat.get_stateless_scope() is None and not traced:
        values = _python_loop(cond, body, start, maximum_iterations)
    else:
        values = _in_scope(lambda: _compiled_loop(cond, body, start, maximum_iterations))
    return tuple(values) if isinstance(loop_vars, tuple) else values


def _python_loop(cond: Any, body: Any, values: list[Any], most: Any) -> list[Any]:
    rounds = 0
    while (most is None or rounds < int(most)) and bool(_value(cond(*values))):
        values = _packed(body(*values), len(values))
        rounds += 1
    return [_arrays(value) for value in values]


def _compiled_loop(cond: Any, body: Any, start: list[Any], most: Any) -> list[Any]:
    def step(values: Any) -> Any:
        return _packed(body(*values), len(start))

    def goes_on(values: Any) -> Any:
        return jnp.asarray(_value(cond(*values)), bool).reshape(())

    start = _arrays(start)
    start = materialised(start, lambda: _discover(step, start)[0])
    shape, writes = _discover(step, start)
    written = _joined([writes, _discover(goes_on, start)[1]])
    wanted = [jax.tree.structure(start), jax.tree.structure(shape)]
    if wanted[0] != wanted[1]:
        raise UsageError(
            "The body of a loop returns what it was called with. Received: "
            f"{wanted[1]} from the body for {wanted[0]}. The next round could not begin. Return "
            "the loop's variables in their order."
        )
    types = [leaf.dtype for leaf in jax.tree.leaves(start)]

    def one_round(carry: Any) -> Any:
        result, news = _enter(written, carry[1], step, carry[0])
        leaves, tree = jax.tree.flatten(result)
        weak = [
            leaf.astype(dtype) if leaf.weak_type else leaf
            for leaf, dtype in zip(leaves, types, strict=True)
        ]
        return tree.unflatten(weak), news

    def more(carry: Any) -> Any:
        return _enter(written, carry[1], goes_on, carry[0])[0]

    carry = (start, [_compat.read(variable) for variable in written])
    if most is None or isinstance(most, Tracer):
        number = (jnp.int32(0), carry)
        bounded = lax.while_loop(
            lambda c: more(c[1]) & (True if most is None else c[0] < most),
            lambda c: (c[0] + 1, one_round(c[1])),
            number,
        )
        values, news = bounded[1]
    else:
        values, news = lax.fori_loop(
            0, int(most), lambda _, c: lax.cond(more(c), one_round, lambda c: c, c), carry
        )
    _assign(written, news)
    return values


def scan(fn: Callable[..., Any], elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    """`fn(state, element)` along the first axis; all the states.

    Args:
        fn: Returns the next state.
        elems: A nest of arrays.
        initializer: The first state; None takes the first element for it.
        reverse: Whether to begin at the end.

    Returns:
        The states, stacked along a new first axis.
    """
    elems = _arrays(elems)
    if initializer is not None:
        return _scanned(fn, _arrays(initializer), elems, reverse=reverse)[1]
    first, rest = _first_of(elems, reverse=reverse)
    states = _scanned(fn, first, rest, reverse=reverse)[1]

    def whole(one: Any, many: Any) -> Any:
        parts = [many, one[None]] if reverse else [one[None], many]
        return jnp.concatenate([part.astype(many.dtype) for part in parts])

    return jax.tree.map(whole, first, states)


def fold(fn: Callable[..., Any], elems: Any, initializer: Any = None, reverse: bool = False) -> Any:
    """`fn(state, element)` along the first axis; the last state.

    Args:
        fn: Returns the next state.
        elems: A nest of arrays.
        initializer: The first state; None takes the first element for it.
        reverse: Whether to begin at the end.
    """
    elems = _arrays(elems)
    if initializer is None:
        initializer, elems = _first_of(elems, reverse=reverse)
    return _scanned(fn, _arrays(initializer), elems, reverse=reverse, keep=False)[0]


def map_fn(fn: Callable[[Any], Any], elems: Any) -> Any:
    """`fn(element)` along the first axis, one after the other; the results, stacked.

    Args:
        fn: The function.
        elems: A nest of arrays.
    """

    def step(state: Any, element: Any) -> Any:
        return state, fn(element)

    return _scanned(step, (), _arrays(elems), pairs=True)[1]


def vectorized_map(fn: Callable[[Any], Any], elems: Any) -> Any:
    """`fn(element)` along the first axis, all at once; the results, stacked.

    Args:
        fn: The function; it writes no variable.
        elems: A nest of arrays.

    Raises:
        UsageError: If it writes one.
    """

    def build() -> Any:
        arrays = _arrays(elems)
        written = _discover(fn, jax.tree.map(lambda leaf: leaf[0], arrays))[1]
        if written:
            raise UsageError(
                "What is computed for all elements at once writes no variable. Received: a write "
                f"to '{next(iter(written.values())).path}'. There is no last one whose value would "
                "stay. Use `tf.map_fn`, which takes one element after the other."
            )
        return jax.vmap(lambda element: _arrays(fn(element)))(arrays)

    return _in_scope(build)


def _scanned(
    fn: Any,
    state: Any,
    elems: Any,
    *,
    reverse: bool = False,
    keep: bool = True,
    pairs: bool = False,
) -> Any:
    def call(state: Any, element: Any) -> Any:
        result = fn(state, element)
        return result if pairs else (result, result if keep else None)

    def build() -> Any:
        example = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), elems)
        shape, writes = _discover(call, state, example)
        written = list(writes.values())
        begin = jax.tree.map(lambda s, leaf: jnp.asarray(leaf, s.dtype), shape[0], state)

        def step(carry: Any, element: Any) -> Any:
            (state, kept), news = _enter(written, carry[1], call, carry[0], element)
            return (state, news), kept

        values = [_compat.read(variable) for variable in written]
        (last, news), kept = lax.scan(step, (begin, values), elems, reverse=reverse)
        _assign(written, news)
        return last, kept

    return _in_scope(build)


def _first_of(elems: Any, *, reverse: bool) -> tuple[Any, Any]:
    first, rest = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    return tuple(jax.tree.map(lambda leaf, at=at: leaf[at], elems) for at in (first, rest))


def _value(value: Any) -> Any:
    """A number of the host, or an array, from whatever holds it."""
    value = _compat.read(value) if isinstance(value, _compat.KerasVariable) else value
    return value if isinstance(value, Tracer) else np.asarray(value)


def _arrays(nest: Any) -> Any:
    def one(leaf: Any) -> Any:
        is_variable = isinstance(leaf, _compat.KerasVariable)
        return jnp.asarray(leaf.value if is_variable else leaf)

    return jax.tree.map(one, nest)


def _packed(result: Any, count: int) -> list[Any]:
    several = isinstance(result, list | tuple) and (count != 1 or len(result) == 1)
    return list(result) if several else [result]


def _discover(fn: Callable[..., Any], *args: Any) -> tuple[Any, dict[int, Any]]:
    """What a function returns, in shapes, and which variables it writes."""
    with CaptureScope() as scope:
        shape = jax.eval_shape(lambda *given: _arrays(fn(*given)), *args)
    return shape, scope.writes


def _joined(found: Any) -> list[Any]:
    return list({key: variable for writes in found for key, variable in writes.items()}.values())


def _enter(written: Sequence[Any], values: Any, fn: Callable[..., Any], *args: Any) -> Any:
    """Call a function with these values of variables; its result, and their new values."""
    with CaptureScope() as scope:
        scope.lend(zip(written, values, strict=True))
        result = _arrays(fn(*args))
        news = [scope.get_current_value(variable) for variable in written]
    return result, news


def _assign(written: Sequence[Any], news: Sequence[Any]) -> None:
    for variable, new in zip(written, news, strict=True):
        variable.assign(new)


def _in_scope(build: Callable[[], Any]) -> Any:
    """Run in a scope that takes writes: the one around, or one that writes them at its end."""
    if _compat.get_stateless_scope() is not None:
        return build()
    for _ in range(2):
        before = _compat.pending_variables()
        with CaptureScope() as scope:
            result = build()
            created = _compat.pending_variables() - before
        if not created:
            break  # else once more, with the variables that are there now
    for variable, new in scope.updates():
        variable.assign(new)
    return result
