"""How long each replica's gradient is: a program beside the step, which changes nothing of it.

In `fit` there is one gradient, that of the whole batch. Here each replica computes the one of its
own rows, which costs about as much as a step; so it is done for one step of many.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.sharding import PartitionSpec

from replicax._core.compiling import compiled
from replicax._core.errors import UsageError
from replicax._core.host_calls import silent
from replicax._core.program import agree_on_program
from replicax._core.topology import AXIS
from replicax._fit.step_program import model_step
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._keras.pace import Pace


@final
class GradientNorms:
    """Looks at every so many steps of a model.

    Args:
        model: The Keras model.
        pace: Counts its steps.
        every: After how many steps it looks.
    """

    def __init__(self, model: Any, pace: Pace, every: int) -> None:
        self._model, self._pace, self._every = model, pace, every
        self._distribution = _compat.strategy_of(model).extended.distribution
        self._program: Any = None
        self._agreed: set[Any] = set()
        self._due = 0
        self._found: list[tuple[int, Any]] = []

    def __call__(self, state: Any, batch: Any) -> Any:
        """Look at a step that begins: what it computes, which is not waited for."""
        step, replicas = self._pace.steps, self._distribution.topology.num_replicas
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(batch))
        # Replicas with other numbers of rows would need another program.
        if step < self._due or any(shape and shape[0] % replicas for shape, _ in shapes):
            return None
        self._due = step + self._every
        program = self._program = self._program or self._compiled()
        if self._distribution.topology.num_processes > 1 and shapes not in self._agreed:
            self._agreed.add(shapes)
            agree_on_program("gradient norms", program.trace(state, batch).jaxpr, batch)
        norms = program(state, batch)
        self._found.append((step, norms))
        return norms

    def take(self, *, wait: bool) -> list[tuple[int, list[float]]]:
        """The steps that were looked at since the last call, and their norms, one per replica.

        Args:
            wait: Whether those count, too, that are not computed yet.
        """
        ready = list(itertools.takewhile(lambda one: wait or one[1].is_ready(), self._found))
        del self._found[: len(ready)]
        return [(step, np.asarray(norms).tolist()) for step, norms in ready]

    def _compiled(self) -> Any:
        topology = self._distribution.topology

        def norms(state: Any, batch: Any) -> Any:
            split = jax.tree.map(lambda leaf: PartitionSpec(AXIS) if leaf.ndim else _WHOLE, batch)
            return jax.shard_map(
                lambda state, batch: _norm(self._model, state, batch)[None],
                mesh=topology.mesh,
                axis_names={AXIS},
                in_specs=(_WHOLE, split),
                out_specs=PartitionSpec(AXIS),
                check_vma=False,
            )(state, batch)

        return compiled(norms, devices=topology.devices, out_shardings=topology.replicated)


_WHOLE = PartitionSpec()


def _norm(model: Any, state: Any, batch: Any) -> Any:
    """The norm of what a train step hands to the optimizer, without the loss scale."""
    optimizer = model.optimizer
    with silent(), _heard(optimizer) as heard:
        model_step(model, "train", state, batch)
    if not heard:
        raise UsageError(
            "The gradients of a step are those that it hands to its optimizer. Received: a "
            f"`train_step` of {type(model).__name__} that does not call "
            "`self.optimizer.stateless_apply`. There is nothing to measure. Call it, as Keras "
            "wants it with JAX, or leave out `gradients_every`."
        )
    mapping = list(zip(optimizer.variables, state[2], strict=True))
    with keras.StatelessScope(state_mapping=mapping):
        scale = optimizer.scale_loss(jnp.float32(1))
    known = _compat.trainable_variables(optimizer)
    squares = [
        jnp.sum(jnp.square(grad.astype(jnp.float32)))
        for grad, variable in zip(heard[0], known, strict=False)
        if grad is not None and not _compat.takes_gradient(variable)
    ]
    return jnp.sqrt(sum(squares)) / scale


@contextlib.contextmanager
def _heard(optimizer: Any) -> Generator[list[Any], None, None]:
    """The gradients that are handed to an optimizer in a `with` block; it does nothing there."""
    heard: list[Any] = []

    def stateless_apply(optimizer_variables: Any, grads: Any, trainable_variables: Any) -> Any:
        heard.append(grads)
        return trainable_variables, optimizer_variables

    object.__setattr__(optimizer, "stateless_apply", stateless_apply)
    try:
        yield heard
    finally:
        object.__delattr__(optimizer, "stateless_apply")
