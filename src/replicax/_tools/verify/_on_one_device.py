"""Computes a step of a running `fit` again on one device, and compares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.topology import Topology
from replicax._fit.step_program import model_step, step_variables
from replicax._keras import _compat
from replicax._keras.distribution import installed
from replicax._tools.script import replaced
from replicax._tools.verify._causes import cause_of
from replicax._tools.verify._compare import differences, rounding_of
from replicax._tools.verify._evidence import Evidence
from replicax._tools.verify._record import (
    GRADIENT,
    METRIC,
    SEED,
    SLOT,
    STATISTIC,
    WEIGHT,
    Key,
    Run,
    Seen,
    Value,
)
from replicax._tools.verify._recorder import named, on_host, rows_of
from replicax._tools.verify._result import Comparison

if TYPE_CHECKING:
    from replicax._core.events import Step

_GROUPS = (WEIGHT, STATISTIC, SLOT, METRIC)


@final
class OnOneDevice:
    """Compares steps of a model with one device's results from the same state and batch."""

    def __init__(self, model: Any, strategy: Any) -> None:
        self._model, self._strategy = model, strategy
        self._device = Topology.of(list(strategy.extended.distribution.topology.devices[:1]))
        self._compute = jax.jit(self._step)
        self._state: Any = None

    def before(self, step: Step) -> None:
        """Record the state at the start of a step, because the step reuses its memory."""
        self._state = jax.tree.map(np.array, self._grouped(step.state))

    def after(self, step: Step, number: int) -> Comparison:
        """Compute the recorded step, of this number from 1, and compare."""
        one, start = self._device.replicated, self._state
        state, batches = jax.device_put((start, jax.tree.map(np.array, step.given)), one)
        logs = gradients = None
        with installed(None):
            for batch in batches:
                logs, state, gradients = self._compute(state, batch)
        given = rows_of(step.given)
        values = self._values(state) | self._gradients(gradients)
        seen = Seen(step.doing, given, named(logs, "loss"), values)
        ours = self._run("one_device", 1, start, seen)
        strategy = type(self._strategy).__name__
        replicas = self._strategy.num_replicas_in_sync
        results = named(step.result, "loss")
        seen = Seen(step.doing, given, results, self._values(self._grouped(step.state)))
        theirs = self._run(strategy, replicas, start, seen)
        found = differences(ours, theirs, rounding_of(ours))
        cause = cause_of(Evidence(ours, theirs, found)) if found else None
        return Comparison(strategy, replicas, number, len(ours.before), tuple(found), cause)

    def _step(self, state: Any, batch: Any) -> tuple[Any, Any, Any]:
        """A step, and the gradients that its optimizer is given."""
        given: list[Any] = []

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            def stateless_apply(optimizer: Any, state: Any, grads: Any, values: Any) -> Any:
                given[:] = given or grads  # the outermost optimizer's, of the whole trace
                return original(optimizer, state, grads, values)

            return stateless_apply

        with replaced(type(self._model.optimizer), "stateless_apply", noting):
            logs, new = model_step(self._model, "train", state, batch)
        return logs, new, given

    def _gradients(self, given: Any) -> dict[Key, Value]:
        """One device's gradients only, which tell the weights that get only rounding errors."""
        variables = self._model.trainable_variables
        if len(given) != len(variables):
            return {}  # the user's train step may give the optimizer no or only some gradients
        return {
            (f"gradient of {variable.path}", i): on_host(variable, variable.path, GRADIENT, value)
            for i, (variable, value) in enumerate(zip(variables, given, strict=True))
        }

    def _grouped(self, pairs: Sequence[tuple[Any, Any]]) -> Any:
        values = {id(variable): value for variable, value in pairs}
        groups = step_variables(self._model, "train")
        return tuple([values[id(variable)] for variable in group] for group in groups)

    def _run(self, name: str, replicas: int, start: Any, seen: Seen) -> Run:
        types = {layer.compute_dtype for layer in _compat.layers_in(self._model)}
        return Run(name, replicas, self._values(start), [seen], types)

    def _values(self, state: Any) -> dict[Key, Value]:
        found: dict[Key, Value] = {}
        paths: Counter[str] = Counter()
        groups = step_variables(self._model, "train")
        for kind, variables, values in zip(_GROUPS, groups, state, strict=True):
            for variable, value in zip(variables, values, strict=True):
                counted = kind == STATISTIC and _compat.counts_draws(variable)
                key = (variable.path, paths[variable.path])
                paths[variable.path] += 1
                found[key] = on_host(variable, variable.path, SEED if counted else kind, value)
        return found
