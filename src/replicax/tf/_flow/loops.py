"""`scan`, `fold` and `map_fn`: a function along the first axis; it may read and write variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.errors import UsageError
from replicax.tf._flow.touched import Touched, arrays_of, in_scope


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
    elems = arrays_of(elems)
    if initializer is not None:
        return _scanned(fn, arrays_of(initializer), elems, reverse=reverse)[1]
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
    elems = arrays_of(elems)
    if initializer is None:
        initializer, elems = _first_of(elems, reverse=reverse)
    return _scanned(fn, arrays_of(initializer), elems, reverse=reverse, keep=False)[0]


def map_fn(fn: Callable[[Any], Any], elems: Any) -> Any:
    """`fn(element)` along the first axis, one after the other; the results, stacked.

    Args:
        fn: The function.
        elems: A nest of arrays.
    """

    def step(state: Any, element: Any) -> Any:
        return state, fn(element)

    return _scanned(step, (), arrays_of(elems), pairs=True)[1]


def vectorized_map(fn: Callable[[Any], Any], elems: Any) -> Any:
    """`fn(element)` along the first axis, all at once; the results, stacked.

    Args:
        fn: The function; it writes no variable.
        elems: A nest of arrays.

    Raises:
        UsageError: If it writes one.
    """

    def build() -> Any:
        arrays = arrays_of(elems)
        touched = Touched()
        touched.by(fn, jax.tree.map(lambda leaf: leaf[0], arrays))
        if touched.written:
            raise UsageError(
                "What is computed for all elements at once writes no variable. Received: a write "
                f"to '{next(iter(touched.written.values())).path}'. There is no last one whose "
                "value would stay. Use `tf.map_fn`, which takes one element after the other."
            )
        others = touched.values()[1]
        return jax.vmap(lambda element: touched.enter([], others, fn, element)[0])(arrays)

    return in_scope(build)


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
        touched = Touched()
        shape = touched.by(call, state, example)
        values, others = touched.values()
        begin = jax.tree.map(lambda s, leaf: jnp.asarray(leaf, s.dtype), shape[0], state)

        def step(carry: Any, element: Any) -> Any:
            (state, kept), news = touched.enter(carry[1], others, call, carry[0], element)
            return (state, news), kept

        (last, news), kept = lax.scan(step, (begin, values), elems, reverse=reverse)
        touched.assign(news)
        return last, kept

    return in_scope(build)


def _first_of(elems: Any, *, reverse: bool) -> tuple[Any, Any]:
    first, rest = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    return tuple(jax.tree.map(lambda leaf, at=at: leaf[at], elems) for at in (first, rest))
