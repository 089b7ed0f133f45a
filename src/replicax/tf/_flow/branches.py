"""`tf.cond`, `tf.case` and `tf.switch_case`: branches that read and write Keras variables.

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
from replicax.tf._flow.touched import Touched, in_scope, value_of


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
    """The branch of the first predicate that holds; without a default, the last one's at worst.

    **Differs from TF:** `exclusive` is not checked.
    """
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, dict) else pred_fn_pairs)
    if not pairs:
        raise UsageError("`tf.case` got no branches. Pass `[(predicate, fn), …]`.")
    (pred, fn), rest = pairs[0], pairs[1:]
    if not rest:
        return fn() if default is None else cond(pred, fn, default)
    return cond(pred, fn, lambda: case(rest, default))


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
