"""`tf.cond`, `tf.while_loop`, `tf.scan` and their kin, on functions that use Keras variables.

JAX's control flow takes pure functions. A branch or a loop's body is traced once to find out which
variables it reads and writes; then it is traced again with their values as inputs and outputs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from replicax._core.errors import LeakedTracer, UsageError
from replicax._core.tracing import NeedsValues
from replicax._keras import _compat
from replicax.data._host import HostTensor
from replicax.data._spec import refuse_composites
from replicax.tf._arrays import concat, stack
from replicax.tf._calls import published
from replicax.tf._composite import is_text
from replicax.tf._flow.touched import Touched, arrays_of, in_scope, value_of


def cond(
    pred: Any,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    name: str | None = None,
) -> Any:
    """One of two branches, by a predicate that compiled code may have computed.

    Variables that a branch writes are written if it is taken. If the value of the predicate is
    known now, only that branch is looked at.

    Returns:
        What the branch returned.
    """
    for argument, branch in (("true_fn", true_fn), ("false_fn", false_fn)):
        if not callable(branch):
            raise UsageError.of(argument, "a function", branch, "Write `lambda: x`.")
    pred = value_of(pred)
    if not isinstance(pred, Tracer):
        return true_fn() if bool(pred) else false_fn()
    return in_scope(lambda: _choose(jnp.asarray(pred, bool).astype(int), [false_fn, true_fn]))


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """The branch of the first predicate that holds.

    **Differs from TF:** `exclusive` is not checked. Without a default, compiled code takes the last
    branch if no predicate holds, where TensorFlow raises an error.
    """
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    if not pairs:
        raise UsageError("`tf.case` got no branches. Pass `[(predicate, fn), …]`.")
    if default is not None:
        pairs.append((True, default))
    elif not any(isinstance(value_of(pred), Tracer) or value_of(pred) for pred, _ in pairs):
        raise UsageError("No predicate of `tf.case` holds. Pass `default`.")
    *others, (_, chosen) = pairs
    for pred, fn in reversed(others):
        chosen = functools.partial(cond, pred, fn, chosen)
    return chosen()


def switch_case(
    branch_index: Any,
    branch_fns: Any,
    default: Callable[[], Any] | None = None,
    name: str = "switch_case",
) -> Any:
    """One of several branches, by its number.

    Returns:
        What the branch returned.
    """
    given: list[Any] = list(branch_fns.items() if isinstance(branch_fns, dict) else branch_fns)
    pairs = given if isinstance(given[0], tuple) else list(enumerate(given))
    by_number = {int(number): fn for number, fn in pairs}
    last = default or by_number[max(by_number)]
    branches = [by_number.get(number, last) for number in range(max(by_number) + 1)]
    index = value_of(branch_index)
    if not isinstance(index, Tracer):
        return by_number.get(int(index), last)()
    inside = (index >= 0) & (index < len(branches))
    place = jnp.where(inside, index, len(branches))
    return in_scope(lambda: _choose(place, [*branches, last]))


def _choose(index: Any, branches: Sequence[Callable[[], Any]]) -> Any:
    touched = Touched()
    shapes = [touched.by(branch) for branch in branches]
    trees = [jax.tree.structure(shape) for shape in shapes]
    if any(tree != trees[0] for tree in trees):
        raise UsageError(
            f"Cannot compile branches that return different structures: {trees[0]} and "
            f"{next(tree for tree in trees if tree != trees[0])}. Return the same structure from "
            "each."
        )
    columns = zip(*map(jax.tree.leaves, shapes), strict=True)
    types = [jnp.result_type(*[leaf.dtype for leaf in column]) for column in columns]

    def pure(branch: Callable[[], Any]) -> Callable[[Any], Any]:
        def call(values: Any) -> Any:
            result, news = touched.enter(values[0], values[1], branch)
            leaves, tree = jax.tree.flatten(result)
            cast = [leaf.astype(dtype) for leaf, dtype in zip(leaves, types, strict=True)]
            return tree.unflatten(cast), news

        return call

    values = touched.values()
    result, news = lax.switch(index, [pure(branch) for branch in branches], values)
    touched.assign(news)
    return result


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: Any = None,
    name: str | None = None,
) -> Any:
    """A loop in compiled code; in Python, where nothing is traced.

    **Differs from TF:** shapes stay the same in all rounds. Gradients flow through a loop with
    `maximum_iterations` only; JAX has none of a loop without a known end.

    Returns:
        The last values, in the structure of `loop_vars`.
    """
    start = list(loop_vars) if isinstance(loop_vars, list | tuple) else [loop_vars]
    traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(start))
    if _compat.get_stateless_scope() is None and not traced:
        values = _python_loop(cond, body, start, maximum_iterations)
    else:
        values = _compiled_loop(cond, body, start, maximum_iterations)
    return tuple(values) if isinstance(loop_vars, tuple) else values


def _python_loop(cond: Any, body: Any, values: list[Any], most: Any) -> list[Any]:
    rounds = 0
    while (most is None or rounds < int(most)) and bool(value_of(cond(*values))):
        values = _packed(body(*values), len(values))
        rounds += 1
    return [arrays_of(value) for value in values]


def _compiled_loop(cond: Any, body: Any, start: list[Any], most: Any) -> list[Any]:
    from replicax.tf._autograph.staged import State, loop  # loads malt

    values = start

    def put(new: Any) -> None:
        nonlocal values
        values = list(new)

    def one_round(_: Any) -> None:
        after = _packed(body(*values), len(start))
        if len(after) != len(start):
            raise UsageError(
                f"The loop's body returns {len(after)} variables, but there are {len(start)}. "
                "Return all loop variables, in their order."
            )
        put(after)

    names = [f"loop_vars[{number}]" for number in range(len(start))]
    computed = isinstance(most, Tracer)
    rounds, most = (most, None) if computed or most is None else (None, int(most))
    loop(lambda _: cond(*values), one_round, State(lambda: values, put, names), rounds, most)
    return values


def _packed(result: Any, count: int) -> list[Any]:
    several = isinstance(result, list | tuple) and (count != 1 or len(result) == 1)
    return list(result) if several else [result]


def scan(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Any:
    """`fn(state, element)` along the first axis; all the states.

    Returns:
        The states, stacked along a new first axis.
    """

    def step(state: Any, element: Any) -> Any:
        new = fn(state, element)
        return new, new

    elems = _elements(elems)
    if initializer is not None:
        return _scanned(step, _elements(initializer), elems, reverse)[1]
    first, rest = _first_of(elems, reverse)
    states = _scanned(step, first, rest, reverse)[1]

    def whole(one: Any, many: Any) -> Any:
        parts = [many, stack([one])] if reverse else [stack([one]), many]
        return concat([part.astype(many.dtype) for part in parts], 0)

    return jax.tree.map(whole, first, states)


def _fold(name: str, order: str, *, reverse: bool) -> Callable[..., Any]:
    def fold(
        fn: Callable[..., Any],
        elems: Any,
        initializer: Any = None,
        parallel_iterations: int = 10,
        back_prop: bool = True,
        swap_memory: bool = False,
        name: str | None = None,
    ) -> Any:
        elems = _elements(elems)
        if initializer is None:
            initializer, elems = _first_of(elems, reverse)
        start = _elements(initializer)
        return _scanned(lambda *given: (fn(*given), None), start, elems, reverse)[0]

    return published(fold, name, f"`fn(state, element)` from the {order}; the last state.")


foldl = _fold("foldl", "first element to the last", reverse=False)
foldr = _fold("foldr", "last element to the first", reverse=True)


def map_fn(
    fn: Callable[[Any], Any],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Any = None,
) -> Any:
    """`fn(element)` along the first axis, one after the other; the results, stacked."""
    return _scanned(lambda state, element: (state, fn(element)), (), _elements(elems))[1]


def vectorized_map(
    fn: Callable[[Any], Any], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True
) -> Any:
    """`fn(element)` along the first axis, all at once (`jax.vmap`); the results, stacked.

    **Differs from TF:** there is no fallback to a loop, so `fallback_to_while_loop` and `warn` have
    no effect.

    Raises:
        UsageError: If it writes one.
    """

    def build() -> Any:
        arrays = arrays_of(elems)
        refuse_composites(arrays)
        touched = Touched()
        touched.by(fn, jax.tree.map(_row, arrays))
        if touched.written:
            raise UsageError(
                f"Cannot write variable '{next(iter(touched.written.values())).path}' in a "
                "function that computes all elements at once. Use `tf.map_fn`, which takes one "
                "element after the other."
            )
        others = touched.values()[1]
        return jax.vmap(lambda element: touched.enter([], others, fn, element)[0])(arrays)

    return in_scope(build)


def _scanned(step: Callable[..., Any], state: Any, elems: Any, reverse: bool = False) -> Any:
    """The last state, and the second results of `step(state, element)`, stacked."""

    def build() -> Any:
        refuse_composites(elems)
        touched = Touched()
        shape = touched.by(step, state, jax.tree.map(_row, elems))
        values, others = touched.values()
        begin = jax.tree.map(lambda s, leaf: jnp.asarray(leaf, s.dtype), shape[0], state)

        def one(carry: Any, element: Any) -> Any:
            (state, kept), news = touched.enter(carry[1], others, step, carry[0], element)
            return (state, news), kept

        (last, news), kept = lax.scan(one, (begin, values), elems, reverse=reverse)
        touched.assign(news)
        return last, kept

    leaves = jax.tree.leaves((state, elems))
    if any(map(_is_text, leaves)):  # text is on the host
        return _python_scan(step, state, elems, reverse)
    if _compat.get_stateless_scope() is not None or any(isinstance(x, Tracer) for x in leaves):
        return in_scope(build)
    try:
        return in_scope(build)
    except _NEED_VALUES:
        # `step` asks for values. Nothing is compiled here, so each element has its own.
        return _python_scan(step, state, elems, reverse)


_NEED_VALUES = (
    *(NeedsValues, LeakedTracer, jax.errors.ConcretizationTypeError),
    *(jax.errors.TracerArrayConversionError, jax.errors.TracerIntegerConversionError),
)


def _python_scan(step: Callable[..., Any], state: Any, elems: Any, reverse: bool) -> Any:
    kept, rows = [], range(len(jax.tree.leaves(elems)[0]))
    if not rows:  # what an element of zeros, or without text, gives is of the same shape
        one = step(state, jax.tree.map(_example, elems))[1]
        return state, jax.tree.map(lambda leaf: stack([leaf])[:0], one)
    for row in reversed(rows) if reverse else rows:
        state, one = step(state, jax.tree.map(lambda leaf, row=row: leaf[row], elems))
        kept.append(one)
    kept = kept[::-1] if reverse else kept
    return state, jax.tree.map(lambda *leaves: stack(leaves), *kept)


def _row(leaf: Any) -> Any:
    if not leaf.shape:
        raise UsageError("`elems` must be arrays, or a nest of arrays, got a number in it.")
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _elements(nest: Any) -> Any:
    """A nest with arrays for all but its texts, which stay on the host."""
    return jax.tree.map(lambda leaf: leaf if _is_text(leaf) else arrays_of(leaf), nest)


def _is_text(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_text(leaf)


def _example(rows: Any) -> Any:
    return HostTensor.of(np.full(rows.shape[1:], "" if is_text(rows) else 0, rows.dtype))


def _first_of(elems: Any, reverse: bool) -> tuple[Any, Any]:
    jax.tree.map(_row, elems)
    first, rest = (-1, slice(None, -1)) if reverse else (0, slice(1, None))
    return tuple(jax.tree.map(lambda leaf, at=at: leaf[at], elems) for at in (first, rest))
