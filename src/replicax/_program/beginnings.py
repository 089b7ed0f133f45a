"""Variables that a compiled function makes of what it computes, when it is first called.

`if self.v is None: self.v = tf.Variable(tf.ones([2]) * 3.0)`: while the function is traced, the
value is not known. The trace that makes the variable is not the program. It is sliced for the
value, which is computed with what the variables hold now and with the arguments of the call, if
they are at hand; then the function is traced again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax.core
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.placement import is_spread
from replicax._core.values import PerReplica
from replicax._keras import _compat


@final
class Beginning:
    """The initializer of a variable whose first value is computed after the trace."""

    def __init__(self, traced: Any) -> None:
        self.traced = traced
        self._value: Any = None

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        value = self.traced if self._value is None else self._value
        if value is None:
            raise UsageError(
                "This variable has no value: the call of the compiled function that made it "
                "failed. Make another one."
            )
        return jnp.asarray(value, dtype)

    def end(self, value: Any = None) -> None:
        """The trace is over: take the value that was computed, None if it failed."""
        self.traced, self._value = None, None if value is None else np.array(value)


def seeds_in(writes: Sequence[Any]) -> list[Any]:
    """The states of random generators among the variables that a trace writes.

    They go on with the first values, so that the next variable begins with other numbers.
    """
    return [v for v in writes if _compat.counts_draws(v) and not _compat.has_rows_of_replicas(v)]


def begin(
    beginnings: Sequence[Beginning],
    seeds: Sequence[Any],
    jaxpr: Any,
    variables: Sequence[Any],
    given: Sequence[Any],
    axis_env: Sequence[tuple[str, int]],
) -> bool:
    """Compute the first values and the seeds after them: the last outputs of a trace.

    The trace is from the variables' values and the function's arguments, which are `given` if they
    are at hand: arrays, of which `PerReplica` have a row each. Of the axes that it may ask for,
    replica 0 counts. Returns whether all that they are made of is at hand.
    """
    whole = jaxpr.jaxpr
    outputs = whole.outvars[-len(beginnings) - len(seeds) :]
    needed, kept = {id(var) for var in outputs}, []
    for equation in reversed(whole.eqns):
        if any(id(var) in needed for var in equation.outvars):
            kept.append(equation)
            needed.update(map(id, equation.invars))
    held = [_held(variable) for variable in variables]
    known = [*held, *map(_array_of, given)]
    known += [(None, None)] * (len(whole.invars) - len(known))
    used = [(var, *one) for var, one in zip(whole.invars, known, strict=True) if id(var) in needed]
    if any(value is None for _, value, _ in used):
        return False
    sliced = whole.replace(
        eqns=kept[::-1],
        outvars=outputs,
        invars=[var for var, *_ in used],
        debug_info=whole.debug_info._replace(arg_names=None, result_paths=None),
    )
    compute: Any = jax.extend.core.jaxpr_as_fun(jaxpr.replace(jaxpr=sliced))
    with _compat.outside_scopes(), jax.core.eval_context():
        for name, size in axis_env:  # there is one at most: that of the replicas
            axes = [axis for *_, axis in used]
            compute = jax.vmap(compute, axes, axis_name=name, axis_size=size)
        values: Any = compute(*[value for _, value, _ in used])
        if axis_env:
            values = [value[0] for value in values]
        for beginning, value in zip(beginnings, values, strict=False):
            beginning.end(value)
        for seed, value in zip(seeds, values[len(beginnings) :], strict=True):
            _compat.go_on_with(seed, value)
    return True


def _held(variable: Any) -> tuple[Any, int | None]:
    """What a variable holds, None if that is not known yet, and its axis of replicas."""
    return _compat.stored(variable), 0 if _compat.has_rows_of_replicas(variable) else None


def _array_of(argument: Any) -> tuple[Any, int | None]:
    """The same of an argument; of what other processes hold nothing is known."""
    is_divided = isinstance(argument, PerReplica)
    array = argument.stacked if is_divided else argument
    is_here = not (isinstance(array, Tracer) or is_spread(array))
    return np.asarray(array) if is_here else None, 0 if is_divided else None


def give_up(beginnings: Sequence[Beginning]) -> None:
    """The trace failed: no variable gets a value of it."""
    _compat.forget_pending(lambda one: any(_compat.starts_from(one, b) for b in beginnings))
    for beginning in beginnings:
        beginning.end()
