"""`cond`, `while_loop`, `range`, `map_fn`: control flow on values of compiled code.

Functions that translate TensorFlow's arguments; what they do is in `tf/_flow/control_flow.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax._core.errors import UsageError
from replicax.tf._flow import control_flow, loops
from replicax.tf._flow.ranges import number_range
from replicax.tf._flow.tensor_array import TensorArray as TensorArray

__all__ = [
    "TensorArray",
    "case",
    "cond",
    "foldl",
    "foldr",
    "map_fn",
    "range",
    "scan",
    "switch_case",
    "vectorized_map",
    "while_loop",
]


def cond(
    pred: Any,
    true_fn: Callable[[], Any],
    false_fn: Callable[[], Any],
    name: str | None = None,
) -> Any:
    """One of two branches, by a predicate; variables that it writes are written if it is taken."""
    return control_flow.cond(pred, true_fn, false_fn)


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
        raise UsageError(
            "`tf.case` chooses among branches. Received: no pairs of a predicate and a function. "
            "There is nothing to call. Pass `[(predicate, fn), …]`."
        )
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
    """One of several branches, by its number."""
    return control_flow.switch_case(branch_index, branch_fns, default)


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
    """A loop on values of compiled code.

    **Differs from TF:** shapes stay the same in all rounds; gradients flow through it if
    `maximum_iterations` is given.
    """
    return control_flow.while_loop(cond, body, loop_vars, maximum_iterations=maximum_iterations)


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
    return loops.map_fn(fn, elems)


def vectorized_map(
    fn: Callable[[Any], Any], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True
) -> Any:
    """`fn(element)` along the first axis, all at once (`jax.vmap`); the results, stacked."""
    return loops.vectorized_map(fn, elems)


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
    """`fn(state, element)` along the first axis; all the states, stacked."""
    return loops.scan(fn, elems, initializer, reverse=reverse)


def foldl(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """`fn(state, element)` from the first element to the last; the last state."""
    return loops.fold(fn, elems, initializer)


def foldr(
    fn: Callable[..., Any],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Any:
    """`fn(state, element)` from the last element to the first; the last state."""
    return loops.fold(fn, elems, initializer, reverse=True)


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: Any = None, name: str = "range"
) -> Any:
    """Numbers from `start` up to `limit`.

    **Differs from TF:** a loop over more than 16 of them, or up to an argument, makes the
    `tf.function` around it a host loop.
    """
    return number_range(start, limit, delta, dtype)
