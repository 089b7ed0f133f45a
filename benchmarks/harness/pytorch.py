"""PyTorch in loops as its users write them: eager, compiled, or in two processes by DDP."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from .torch_layers import network_of
from .training import EVALUATE, FIT, LOOP, PREDICT, WORKERS, Plan, Training, synchronous

if TYPE_CHECKING:
    import numpy as np

    from .workloads import Workload

Batch = tuple[dict[str, Any], Any]
AHEAD = 2  # batches that are pinned before they are asked for


class PyTorch:
    """Trains a workload on a GPU, on the CPU with all cores, or in processes of a thread each.

    Args:
        plan: What to train.
        workload: The same, made.
        compiled: Whether the model goes through `torch.compile`.
    """

    def __init__(self, plan: Plan, workload: Workload, *, compiled: bool) -> None:
        self._replicas = plan.replicas if plan.strategy == WORKERS else 1
        torch.set_num_threads(len(os.sched_getaffinity(0)) // self._replicas)
        self._workload, self._compiled = workload, compiled
        self._device = "cuda" if plan.device == "gpu" else plan.device
        self._batches = [tensors_of(*batch) for batch in workload.batches]
        if self._replicas > 1:
            many, rank = self._replicas, int(os.environ["BENCHMARK_RANK"])
            address = f"tcp://{os.environ['BENCHMARK_ADDRESS']}"
            distributed.init_process_group("gloo", address, world_size=many, rank=rank)
            self._batches = [
                ({n: x.chunk(many)[rank] for n, x in inputs.items()}, labels.chunk(many)[rank])
                for inputs, labels in self._batches
            ]
        self._mixed = workload.precision == "mixed_bfloat16"
        if plan.device == "gpu":
            exact = workload.types == "float32"
            torch.set_float32_matmul_precision("highest" if exact else "high")
            torch.backends.cudnn.allow_tf32 = not exact
            torch.backends.cudnn.benchmark = True  # XLA tries its kernels, too

    def training(self, path: str) -> Training:
        model = self._model(self._workload, path)
        train = self._adversarial if self._workload.discriminator else self._fit
        ways = {FIT: train, LOOP: train, EVALUATE: self._evaluate, PREDICT: self._predict}
        run = ways[path](model)
        batches, some = self._batches, self._workload.checked
        return synchronous(
            lambda: run(batches[:1]), lambda: run(batches), lambda: run(batches[:some])
        )

    def _model(self, workload: Workload, path: str) -> Any:
        network = network_of(workload).train(path in (FIT, LOOP)).to(self._device)
        if self._replicas > 1:
            return DistributedDataParallel(network)
        return torch.compile(network) if self._compiled else network

    def _placed(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """Each batch where the model is; for a GPU the next are pinned meanwhile."""
        if self._device == "cpu":
            yield from (seen(*batch) for batch in batches)
            return
        with ThreadPoolExecutor(1) as thread:  # as in a `DataLoader` with `pin_memory`
            rest = iter(batches)
            futures = deque(thread.submit(pinned, *batch) for batch in islice(rest, AHEAD))
            while futures:
                inputs, labels = futures.popleft().result()
                futures.extend(thread.submit(pinned, *batch) for batch in islice(rest, 1))
                moved = {n: x.to(self._device, non_blocking=True) for n, x in inputs.items()}
                yield seen(moved, labels.to(self._device, non_blocking=True))

    def _fit(self, model: Any) -> Callable[..., float]:
        optimizer = optimizer_of(self._workload, model)

        def fit(batches: Any) -> float:
            losses = []
            for inputs, labels in self._placed(batches):
                optimizer.zero_grad(set_to_none=True)
                loss = self._loss(model, inputs, labels)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return self._mean(losses)

        return fit

    def _adversarial(self, generator: Any) -> Callable[..., float]:
        """The models learn at once, as in TensorFlow's tutorial."""
        workload, average = self._workload, F.binary_cross_entropy_with_logits
        discriminator = self._model(replace(workload, model=workload.discriminator), LOOP)
        of_generator = optimizer_of(workload, generator)
        of_discriminator = optimizer_of(workload, discriminator)

        def step(inputs: Any, pictures: Any) -> Any:
            made = self._logits(generator, inputs)
            real, fake = (self._logits(discriminator, {"inputs": x}) for x in (pictures, made))
            misled = average(fake, torch.ones_like(fake))
            told = average(real, torch.ones_like(real)) + average(fake, torch.zeros_like(fake))
            for loss, model in (misled, generator), (told, discriminator):
                parameters = [*model.parameters()]
                gradients = torch.autograd.grad(loss, parameters, retain_graph=loss is misled)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient
            of_generator.step()
            of_discriminator.step()
            return (misled + told).detach()

        return lambda batches: self._mean([step(x, y.permute(0, 3, 1, 2)) for x, y in batches])

    def _mean(self, losses: Sequence[Any]) -> float:
        mean = torch.stack(losses).mean()
        if self._replicas > 1:
            distributed.all_reduce(mean)
        return float(mean) / self._replicas

    def _evaluate(self, model: Any) -> Callable[..., float]:
        @torch.inference_mode()
        def evaluate(batches: Any) -> float:
            return float(torch.stack([self._loss(model, *b) for b in self._placed(batches)]).mean())

        return evaluate

    def _predict(self, model: Any) -> Callable[..., float]:
        @torch.inference_mode()
        def predict(batches: Any) -> float:
            found = [self._logits(model, inputs).cpu() for inputs, _ in self._placed(batches)]
            return float(abs(torch.cat(found).numpy()).mean())

        return predict

    def _logits(self, model: Any, inputs: Mapping[str, Any]) -> Any:
        with torch.autocast(self._device, torch.bfloat16, enabled=self._mixed):
            return model(**inputs).float()

    def _loss(self, model: Any, inputs: Mapping[str, Any], labels: Any) -> Any:
        logits = self._logits(model, inputs)
        if self._workload.binary:
            return F.binary_cross_entropy_with_logits(logits, labels)
        if logits.ndim == 3:  # words: classes come last, where those of pixels come second
            logits, labels = logits.flatten(0, 1), labels.flatten()
        return F.cross_entropy(logits, labels)


def tensors_of(inputs: Any, labels: np.ndarray) -> Batch:
    """The arrays as tensors, by the name of the input."""
    named = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    return {n: torch.from_numpy(array) for n, array in named.items()}, torch.from_numpy(labels)


def pinned(inputs: Mapping[str, Any], labels: Any) -> Batch:
    """Copies from which a GPU can read while the CPU does something else."""
    return {name: x.pin_memory() for name, x in inputs.items()}, labels.pin_memory()


def seen(inputs: Mapping[str, Any], labels: Any) -> Batch:
    """As PyTorch sees them: pictures lie as they did, channels last; classes have 64 bits."""
    pictures = {n: x.permute(0, 3, 1, 2) if x.ndim == 4 else x for n, x in inputs.items()}
    return pictures, labels if labels.is_floating_point() else labels.long()


def optimizer_of(workload: Workload, model: Any) -> Any:
    """PyTorch's own, by its defaults but for the epsilon of Keras; fused on a GPU."""
    settings: dict[str, Any] = {"eps": 1e-7} if workload.optimizer == "Adam" else {}
    if next(model.parameters()).is_cuda:
        settings["fused"] = True
    settings |= {"lr" if n == "learning_rate" else n: v for n, v in workload.settings.items()}
    return getattr(torch.optim, workload.optimizer)(model.parameters(), **settings)
