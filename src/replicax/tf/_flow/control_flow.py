"""`cond`, `switch_case` and `while_loop` for code that reads and writes Keras variables.

JAX's control flow takes pure functions. A branch or a loop's body is traced once to find out which
variables it reads and writes; then it is traced again with their values as inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax.tf._flow.tensor_array import materialised
from replicax.tf._flow.touched import Touched, arrays_of, in_scope, value_of


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
    pred = value_of(pred)
    if not isinstance(pred, Tracer):
        return true_fn() if bool(pred) else false_fn()
    return in_scope(lambda: _choose(jnp.asarray(pred, bool).astype(int), [false_fn, true_fn]))


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
            "The branches of compiled code return the same structure. Received: "
            f"{trees[0]} and {next(tree for tree in trees if tree != trees[0])}. Which one is "
            "taken is not known before it runs. Return the same from each."
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
        values = in_scope(lambda: _compiled_loop(cond, body, start, maximum_iterations))
    return tuple(values) if isinstance(loop_vars, tuple) else values


def _python_loop(cond: Any, body: Any, values: list[Any], most: Any) -> list[Any]:
    rounds = 0
    while (most is None or rounds < int(most)) and bool(value_of(cond(*values))):
        values = _packed(body(*values), len(values))
        rounds += 1
    return [arrays_of(value) for value in values]


def _compiled_loop(cond: Any, body: Any, start: list[Any], most: Any) -> list[Any]:
    def step(values: Any) -> Any:
        return _packed(body(*values), len(start))

    def goes_on(values: Any) -> Any:
        return jnp.asarray(value_of(cond(*values)), bool).reshape(())

    start = arrays_of(start)
    start = materialised(start, lambda: Touched().by(step, start))
    touched = Touched()
    shape = touched.by(step, start)
    touched.by(goes_on, start)
    values, others = touched.values()
    wanted = [jax.tree.structure(start), jax.tree.structure(shape)]
    if wanted[0] != wanted[1]:
        raise UsageError(
            "The body of a loop returns what it was called with. Received: "
            f"{wanted[1]} from the body for {wanted[0]}. The next round could not begin. Return "
            "the loop's variables in their order."
        )
    types = [leaf.dtype for leaf in jax.tree.leaves(start)]

    def one_round(carry: Any) -> Any:
        result, news = touched.enter(carry[1], others, step, carry[0])
        leaves, tree = jax.tree.flatten(result)
        weak = [
            leaf.astype(dtype) if leaf.weak_type else leaf
            for leaf, dtype in zip(leaves, types, strict=True)
        ]
        return tree.unflatten(weak), news

    def more(carry: Any) -> Any:
        return touched.enter(carry[1], others, goes_on, carry[0])[0]

    carry = (start, values)
    if most is None or isinstance(most, Tracer):
        number = (jnp.int32(0), carry)
        bounded = lax.while_loop(
            lambda c: more(c[1]) & (True if most is None else c[0] < most),
            lambda c: (c[0] + 1, one_round(c[1])),
            number,
        )
        last, news = bounded[1]
    else:
        last, news = lax.fori_loop(
            0, int(most), lambda _, c: lax.cond(more(c), one_round, lambda c: c, c), carry
        )
    touched.assign(news)
    return last


def _packed(result: Any, count: int) -> list[Any]:
    several = isinstance(result, list | tuple) and (count != 1 or len(result) == 1)
    return list(result) if several else [result]
