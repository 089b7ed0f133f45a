"""The steps of a Keras model as one program: `fit` runs it, `replicax plan` only compiles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from replicax._core import seams
from replicax._keras.program import ProgramState
from replicax._keras.repeated import gathered, repeated
from replicax._keras.slots import noted

Step = Callable[[Any, Any], tuple[Any, Any]]


def model_step(model: Any, kind: str, state: Any, batch: Any) -> tuple[Any, Any]:
    """One step of a model's train, test or predict loop, without side effects.

    Returns:
        What the step says, and the new state.
    """
    result, new = seams.call_traced(getattr(model, f"{kind}_step"), (state, batch), {})
    return result, ((state[0], new) if kind == "predict" else new)


def step_variables(model: Any, kind: str) -> Sequence[Sequence[Any]]:
    """The variables whose values are the state of a step, in groups."""
    groups = [model.trainable_variables, model.non_trainable_variables]
    if kind == "train":
        groups.append(noted(model.optimizer.variables))
    return groups if kind == "predict" else [*groups, model.metrics_variables]


def step_state(
    groups: Sequence[Sequence[Any]], kind: str, *, donates: bool, may_fail: bool = False
) -> ProgramState:
    """The variables of a step."""
    variables = [variable for group in groups for variable in group]
    written = range(len(groups[0]) if kind == "predict" else 0, len(variables))
    # Several threads may call `predict` at once.
    donates = donates and kind != "predict"
    return ProgramState(variables, written, donates=donates, may_fail=may_fail, is_checked=may_fail)


def steps(
    model: Any,
    kind: str,
    state: ProgramState,
    layouts: Sequence[Sequence[Any]],
    *,
    spread: Callable[[Any], Any],
    together: Callable[[Step], Step] = lambda step: step,
) -> Callable[[Any, Any, list[Any]], tuple[Any, Any, Any]]:
    """Steps for all devices, to be compiled.

    Returns:
        From `(written values, other values, batches)` to `(logs, new values, token)`.
    """
    one = together(lambda state, batch: model_step(model, kind, state, batch))
    layouts = tuple(layouts)

    def step(groups: Any, batch: Any) -> tuple[Any, Any]:
        return one(gathered(groups, layouts), spread(batch))

    def program(written: Any, others: Any, batches: list[Any]) -> tuple[Any, Any, Any]:
        values = iter(state.in_order(written, others))
        groups = tuple([next(values) for _ in group] for group in layouts)
        if len(batches) == 1:
            logs, new = step(groups, batches[0])
        else:
            logs, new = repeated(step, groups, batches, layouts, join=kind == "predict")
        news = [value for group in new for value in group]
        return logs, news[len(news) - len(written) :], jnp.int32(0)

    return program


def program_of_steps(
    model: Any,
    kind: str,
    state: ProgramState,
    layouts: Sequence[Sequence[Any]],
    *,
    logs: Any,
    **how: Any,
) -> Any:
    """Steps for all devices, as `jax.jit` has them."""
    flat = [layout for group in layouts for layout in group]
    return state.compile(
        steps(model, kind, state, layouts, **how),
        (),
        apart=False,
        out_shardings=(logs, flat[len(flat) - len(state.written) :], None),
        devices=next((layout.device_set for layout in flat), None),
    )
