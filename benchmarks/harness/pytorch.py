"""PyTorch in loops as its users write them, eager or by `torch.compile`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from .torch_layers import network_of
from .training import EVALUATE, FIT, PREDICT, Plan, Training, synchronous

if TYPE_CHECKING:
    import numpy as np

    from .workloads import Workload


class PyTorch:
    """Trains a workload on the CPU, with all cores that there are.

    Args:
        plan: What to train.
        workload: The same, made.
        compiled: Whether the model goes through `torch.compile`.
    """

    def __init__(self, plan: Plan, workload: Workload, *, compiled: bool) -> None:
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._workload, self._compiled = workload, compiled
        self._batches = [(inputs_of(inputs), labels_of(y)) for inputs, y in workload.batches]
        self._mixed = workload.precision == "mixed_bfloat16"

    def training(self, path: str) -> Training:
        network = network_of(self._workload).train(path == FIT)
        model = torch.compile(network) if self._compiled else network
        run = {FIT: self._fit, EVALUATE: self._evaluate, PREDICT: self._predict}[path](model)
        return synchronous(lambda: run(self._batches[:1]), lambda: run(self._batches))

    def _fit(self, model: Any) -> Callable[..., float]:
        optimizer = optimizer_of(self._workload, model)

        def fit(batches: Any) -> float:
            losses = []
            for inputs, labels in batches:
                optimizer.zero_grad(set_to_none=True)
                loss = self._loss(model, inputs, labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return float(torch.stack(losses).mean())

        return fit

    def _evaluate(self, model: Any) -> Callable[..., float]:
        @torch.inference_mode()
        def evaluate(batches: Any) -> float:
            return float(torch.stack([self._loss(model, *batch) for batch in batches]).mean())

        return evaluate

    def _predict(self, model: Any) -> Callable[..., float]:
        @torch.inference_mode()
        def predict(batches: Any) -> float:
            found = torch.cat([self._logits(model, inputs) for inputs, _ in batches])
            return float(abs(found.numpy()).mean())

        return predict

    def _logits(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._mixed):
            return model(**inputs).float()

    def _loss(self, model: Any, inputs: Mapping[str, Any], labels: Any) -> Any:
        logits = self._logits(model, inputs)
        if self._workload.binary:
            return F.binary_cross_entropy_with_logits(logits, labels)
        if logits.ndim == 3:  # words: classes come last, where those of pixels come second
            logits, labels = logits.flatten(0, 1), labels.flatten()
        return F.cross_entropy(logits, labels)


def inputs_of(arrays: Any) -> dict[str, Any]:
    """Tensors by the name of the input; pictures lie as they did, channels last."""
    named = arrays if isinstance(arrays, dict) else {"inputs": arrays}
    tensors = {name: torch.from_numpy(array) for name, array in named.items()}
    return {n: x.permute(0, 3, 1, 2) if x.ndim == 4 else x for n, x in tensors.items()}


def labels_of(array: np.ndarray) -> Any:
    labels = torch.from_numpy(array)
    return labels if labels.is_floating_point() else labels.long()


def optimizer_of(workload: Workload, model: Any) -> Any:
    """PyTorch's own, by its defaults but for the epsilon of Keras."""
    settings: dict[str, Any] = {"eps": 1e-7} if workload.optimizer == "Adam" else {}
    settings |= {"lr" if n == "learning_rate" else n: v for n, v in workload.settings.items()}
    return getattr(torch.optim, workload.optimizer)(model.parameters(), **settings)
