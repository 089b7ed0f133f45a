"""The steps of a Keras model as one program: `fit` runs it, `replicax plan` only compiles it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from replicax._core import seams
from replicax._keras.repeated import gathered, repeated
from replicax._keras.slots import noted
from replicax._program.central import CentralProgram
from replicax._program.compiling import compiled

Step = Callable[[Any, Any], tuple[Any, Any]]


def model_step(model: Any, kind: str, state: Any, batch: Any) -> tuple[Any, Any]:
    """One step of a model's train, test or predict loop, without side effects.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        state: The values of `step_variables`.
        batch: The whole batch.

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


def steps(
    model: Any,
    kind: str,
    layouts: Any,
    *,
    spread: Callable[[Any], Any],
    together: Callable[[Step], Step] = lambda step: step,
) -> Callable[[Any, list[Any]], tuple[Any, Any]]:
    """Steps for all devices, to be compiled: `(state, batches) -> (logs, state)`.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        layouts: Where each value of the state is, before the steps and after them.
        spread: Divides a batch over the replicas.
        together: Lets the sums over rows travel together, where XLA would not.
    """
    one = together(lambda state, batch: model_step(model, kind, state, batch))

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return one(gathered(state, layouts), spread(batch))

    def program(state: Any, batches: list[Any]) -> tuple[Any, Any]:
        if len(batches) == 1:
            return step(state, batches[0])
        return repeated(step, state, batches, layouts, join=kind == "predict")

    return program


def program_of_steps(
    model: Any, kind: str, layouts: Any, *, logs: Any, donates: bool, **how: Any
) -> Any:
    """Steps for all devices, as `jax.jit` has them.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        layouts: Where each value of the state is, before the steps and after them.
        logs: Where the logs are; None leaves it to XLA.
        donates: Whether the new state takes over the memory of the old one.
        how: What `steps` takes.
    """
    return compiled(
        steps(model, kind, layouts, **how),
        devices=next((layout.device_set for layout in jax.tree.leaves(layouts)), None),
        donate_argnums=(0,) if donates else (),
        out_shardings=(logs, layouts),
    )


def central_program(
    model: Any, kind: str, distribution: Any, state: Any, batches: list[Any], *, donates: bool
) -> CentralProgram:
    """Steps with a state that lives away from the replicas, for batches of one shape.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        distribution: Where the state lives, and where the replicas compute.
        state: The values of `step_variables`.
        batches: The batches.
        donates: Whether the new state takes over the memory of the old one.
    """
    whole = distribution.topology.replicated
    fn = steps(
        model,
        kind,
        jax.tree.map(lambda value: whole, state),
        spread=distribution.spread,
        together=distribution.together,
    )
    return CentralProgram(
        fn,
        (state, batches),
        away=[
            *[True] * len(jax.tree.leaves(state)),
            *[False] * len(jax.tree.leaves(batches)),
        ],
        news=lambda result: result[1],
        store=distribution.store,
        donates=donates,
        devices=distribution.topology.devices,
    )
