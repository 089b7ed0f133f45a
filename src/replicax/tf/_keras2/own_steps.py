"""`train_step(self, data)` of a model, and its sisters, as TensorFlow calls them: with a batch.

Keras on JAX hands a step the values of all variables it knows, and takes new ones. A step of a
batch reads and writes variables itself, also those of networks and optimizers that are no part of
the model's own. It runs as a custom loop does: compiled, and under a strategy by `run`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, final

import jax

from replicax._core import seams
from replicax._fit.replica_steps import concatenated, dividing
from replicax._fit.step_program import default_step, joined, own_step, shares_variables, takes_batch
from replicax._function.function import function
from replicax._keras import _compat
from replicax.tf._keras2 import around

_METHODS = {
    "fit": "train", "train_on_batch": "train", "evaluate": "test", "test_on_batch": "test",
}  # fmt: skip
_LOSSES = "_rx_losses"  # the attribute of a model, during its step, that holds its losses
_DOING = "_rx_doing"  # the attribute of a model that says which of them runs


def install() -> None:
    """Put them into Keras; it is called once."""
    trainer = _compat.JAXTrainer
    for method, kind in _METHODS.items():
        around(trainer, method, functools.partial(_known_as, kind))
    for kind in ("train", "test", "predict"):
        around(trainer, f"{kind}_step", functools.partial(_of_a_batch, kind))
        around(trainer, f"make_{kind}_function", functools.partial(_made, kind))
    around(trainer, _compat.LOOP_STATE, _left_in_variables)
    around(_compat.Trainer, _compat.DATA_LOOK, _left_to_the_step)
    around(_compat.Trainer, _compat.EPOCH_LOGS, _of_all_replicas)
    around(_compat.Trainer, "compute_loss", _tracked)
    owner: Any = _compat.Trainer
    owner.compiled_loss = _loss_of
    owner.compiled_metrics = property(lambda model: _compat.compiled_metrics(model) or NoMetrics())


@final
class BatchSteps:
    """A model's train, test or predict function whose step takes a batch."""

    def __init__(self, model: Any, kind: str) -> None:
        self._model, self._kind = model, kind
        self._strategy = _compat.strategy_of(model)
        if self._strategy is not None:
            self._divide = dividing(self._strategy.extended.distribution.topology)
        self._own = own_step(model, kind)
        self._one = self._replicated if self._strategy else self._step
        if not model.run_eagerly:
            self._one = function(self._one)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        outputs = [self._output(next(iterator))]
        for _ in range(self._model.steps_per_execution - 1):
            batch = next(iterator, None)
            if batch is None:
                break
            outputs.append(self._output(batch))
        if self._kind == "predict" and len(outputs) > 1:
            return joined(outputs), state
        return outputs[-1], state

    def _step(self, batch: Any) -> Any:
        attributes = vars(self._model)
        losses = attributes[_LOSSES] = []
        try:
            found = self._own(batch)
        finally:
            del attributes[_LOSSES]
        # In a replica such a loss is divided by their number, which is for gradients alone.
        return jax.tree.map(
            lambda leaf: (
                _compat.losses.unscale_loss_for_distribution(leaf)
                if any(leaf is loss for loss in losses)
                else leaf
            ),
            found,
        )

    def _output(self, batch: Any) -> Any:
        if isinstance(batch, tuple):  # Keras 2 left out what is not given
            while len(batch) > 1 and batch[-1] is None:
                batch = batch[:-1]
        if self._strategy is not None:
            batch = self._divide(batch)
        output = self._one(batch)
        return output if self._kind == "predict" else _flat(output)

    def _replicated(self, batch: Any) -> Any:
        found = self._strategy.run(self._step, args=(batch,))
        if self._kind == "predict":
            return concatenated(found)
        return self._strategy.reduce("MEAN", found, axis=None)


@final
class NoMetrics:
    """`compiled_metrics` of a model that was compiled without metrics."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Do nothing."""

    def result(self) -> dict[str, Any]:
        """Nothing."""
        return {}


def _flat(logs: Any) -> Any:
    """Logs without the dictionaries in them: `compiled_metrics.result()` is one."""
    if not isinstance(logs, dict):
        return logs
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found.update(_flat(value) if isinstance(value, dict) else {name: value})
    return found


def _known_as(
    kind: str, original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any
) -> Any:
    attributes = vars(self)
    before = attributes.get(_DOING, "predict")
    attributes[_DOING] = kind
    try:
        return original(self, *args, **kwargs)
    finally:
        attributes[_DOING] = before


def _of_a_batch(
    kind: str, original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Keras' own step, which a step of a batch may call with its batch."""
    if len(args) + len(kwargs) == 1:
        return default_step(self, kind)(*args, *kwargs.values())
    return original(self, *args, **kwargs)


def _keeps_variables(model: Any, kind: str) -> bool:
    """Whether a step reads and writes variables itself.

    Keras' loop would hold two values of one that the model shares with its optimizer.
    """
    is_alone = _compat.strategy_of(model) is None and _compat.distribution() is None
    shares = is_alone and seams.speaks_tensorflow and shares_variables(model, kind)
    return shares or takes_batch(model, kind)


def _made(kind: str, original: Callable[..., Any], self: Any, /, force: bool = False) -> Any:
    attribute = f"{kind}_function"
    owner = _compat.strategy_of(self)
    by_closures = owner is not None and owner.extended.distribution.engine.closures is not None
    if by_closures or not _keeps_variables(self, kind):
        return original(self, force or isinstance(getattr(self, attribute), BatchSteps))
    if force or not isinstance(getattr(self, attribute), BatchSteps):
        setattr(self, attribute, BatchSteps(self, kind))
    return getattr(self, attribute)


def _tracked(original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """`compute_loss`, of which the metric `loss` hears in a step of a batch, as in Keras 2."""
    loss = original(self, *args, **kwargs)
    losses = vars(self).get(_LOSSES)
    if losses is not None and loss is not None:
        losses.append(loss)
        named = inspect.signature(original).bind(self, *args, **kwargs).arguments
        rows = [named.get(name) for name in ("y", "y_pred", "x")]
        _compat.track_loss(self, loss, next(one for one in rows if one is not None))
    return loss


def _left_in_variables(original: Callable[..., Any], self: Any, /, **wanted: bool) -> Any:
    """The values of all variables for a loop: none, if its step reads and writes variables."""
    kind = "predict"
    if wanted.get("metrics_variables"):
        kind = "train" if wanted.get("optimizer_variables") else "test"
    if not _keeps_variables(self, kind):
        return original(self, **wanted)
    return tuple([] for name, wish in wanted.items() if wish and name != _compat.PURGES)


def _left_to_the_step(
    original: Callable[..., Any], self: Any, /, *args: Any, **kwargs: Any
) -> None:
    """Build a model from the shapes of a batch, unless its own step takes batches and builds it."""
    if not takes_batch(self, vars(self).get(_DOING, "predict")):
        original(self, *args, **kwargs)


def _of_all_replicas(original: Callable[..., Any], self: Any, /, logs: Any) -> Any:
    """The logs of an epoch: of metrics what they say now, of the rest what a step has said.

    Keras' own metric `loss` says nothing if a step makes its loss itself.
    """
    if not isinstance(logs, dict) or not takes_batch(self, vars(self).get(_DOING, "predict")):
        return original(self, logs)
    results = self.get_metrics_result()
    if not _compat.has_tracked_loss(self):
        results.pop("loss", None)
    return {name: results.get(name, value) for name, value in logs.items()}


def _loss_of(
    model: Any, y: Any, y_pred: Any, sample_weight: Any = None, regularization_losses: Any = None
) -> Any:
    """The loss that `compile` was given, which the metric `loss` hears of."""
    loss = _compat.compiled_loss(model, y, y_pred, sample_weight)
    if regularization_losses:
        added = sum(regularization_losses[1:], regularization_losses[0])
        loss = loss + _compat.losses.scale_loss_for_distribution(added)
    _compat.track_loss(model, loss, y)
    vars(model).get(_LOSSES, []).append(loss)
    return loss
