"""Gradients as variables: an optimizer keeps its last gradients, beside its momentum.

So they are visible wherever an optimizer is applied, in compiled code and in compiled loops, like
every other variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, final

import jax.numpy as jnp
import keras

from replicax._core.context import current_frame
from replicax._keras import _compat
from replicax._tools.script import replaced
from replicax._tools.verify._record import GRADIENT, NORMS


@final
class Gradients:
    """Sees the gradients of all optimizers that are built while it watches."""

    def __init__(self) -> None:
        self.kinds: dict[int, str] = {}
        self.paths: dict[int, str] = {}  # of the weights, by the id of the kept gradient
        # By optimizer: itself, the kept gradients by variable, and the norms.
        self._kept: dict[int, tuple[Any, dict[int, Any], Any]] = {}

    @contextlib.contextmanager
    def seen(self) -> Generator[None, None, None]:
        """Watch gradients in a `with` block."""
        with (
            replaced(_compat.BaseOptimizer, "build", self._built),
            replaced(_compat.BaseOptimizer, "apply", self._given),
            replaced(keras.optimizers.Optimizer, _compat.APPLIES, self._applied),
        ):
            yield

    def _built(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def build(optimizer: Any, variables: Sequence[Any]) -> None:
            original(optimizer, variables)
            if isinstance(optimizer, _compat.LossScaleOptimizer) or not variables:
                return  # its inner optimizer is built, too
            frame = current_frame()
            replicas = frame.strategy.num_replicas_in_sync if frame else 1
            kept = {
                id(variable): optimizer.add_variable_from_reference(variable, "seen_gradient")
                for variable in variables
            }
            norms = optimizer.add_variable((replicas, len(kept)), name="seen_norms")
            self._kept[id(optimizer)] = (optimizer, kept, norms)
            self.paths |= {id(kept[id(one)]): one.path for one in variables}
            self.kinds |= {id(one): GRADIENT for one in kept.values()} | {id(norms): NORMS}

        return build

    def _given(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Records the norms of each replica's gradients before they are summed."""

        def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
            grads = list(grads)
            named = None if trainable_variables is None else list(trainable_variables)
            result = original(optimizer, grads, named)
            if id(optimizer) in self._kept:
                self._note_norms(optimizer, grads, named)
            return result

        return apply

    def _note_norms(self, optimizer: Any, grads: Sequence[Any], variables: Any) -> None:
        _, kept, norms = self._kept[id(optimizer)]
        known = _compat.trainable_variables(optimizer) if variables is None else variables
        by_variable = {id(v): g for v, g in zip(known, grads, strict=False) if g is not None}
        own = [jnp.linalg.norm(jnp.ravel(by_variable.get(one, jnp.zeros(1)))) for one in kept]
        row = jnp.stack([norm.astype(jnp.float32) for norm in own])[None]
        frame = current_frame()
        if frame is not None and frame.replica is not None:
            row = frame.replica.all_gather(row, 0)
        if row.shape == tuple(norms.shape):  # an undivided batch has one row
            norms.assign(row)

    def _applied(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, grads: Sequence[Any], variables: Sequence[Any]) -> None:
            original(optimizer, grads, variables)
            if id(optimizer) in self._kept:
                _, kept, _ = self._kept[id(optimizer)]
                for gradient, variable in zip(grads, variables, strict=True):
                    kept[id(variable)].assign(gradient.astype(variable.dtype))

        return apply
