"""The step of a Keras model as one program: `fit` runs it, `replicax plan` compiles it only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


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
    result, new = getattr(model, f"{kind}_step")(state, batch)
    return result, ((state[0], new) if kind == "predict" else new)


def step_variables(model: Any, kind: str) -> Sequence[Sequence[Any]]:
    """The variables whose values are the state of a step, in groups."""
    groups = [model.trainable_variables, model.non_trainable_variables]
    if kind == "train":
        groups.append(model.optimizer.variables)
    return groups if kind == "predict" else [*groups, model.metrics_variables]


def program_of_step(
    model: Any, kind: str, layouts: Any, *, spread: Callable[[Any], Any], logs: Any, donates: bool
) -> Any:
    """The step for all devices, as `jax.jit` has it: `(state, batch) -> (logs, state)`.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        layouts: Where each value of the state is, before the step and after it.
        spread: Divides a batch over the replicas.
        logs: Where the logs are; None leaves it to XLA.
        donates: Whether the new state takes over the memory of the old one.
    """

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return model_step(model, kind, state, spread(batch))

    return jax.jit(step, donate_argnums=(0,) if donates else (), out_shardings=(logs, layouts))
