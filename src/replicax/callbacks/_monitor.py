"""A Keras callback that writes the throughput of training as lines of JSON and for TensorBoard."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, final

import jax
import keras
import numpy as np

from replicax._core.errors import UsageError, checks_types
from replicax._core.event_files import EventFile
from replicax._core.folder import named
from replicax._core.machine import nvidia
from replicax._fit.figures import Snapshot, between
from replicax._fit.steps import throughput_of
from replicax._keras import _compat, workers

_SECONDS = 5.0  # between two questions; each takes the driver about 50 ms


@final
class GpuLoad:
    """Asks every few seconds from its start to its `close`, on a thread; gives up at an error."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds, self._is_over = seconds, threading.Event()
        self._samples: list[list[float | None]] = []
        threading.Thread(target=self._ask, name="gpu-load", daemon=True).start()

    def mean(self) -> list[float | None]:
        """The mean of each GPU since the last call; empty if nobody answered in that time."""
        samples, self._samples = self._samples, []
        return [_mean(known) for known in zip(*samples, strict=False)]

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()

    def _ask(self) -> None:
        with contextlib.suppress(nvidia.NoAnswerError):
            while not self._is_over.wait(self._seconds):
                self._samples.append(nvidia.utilization())


def _mean(known: tuple[float | None, ...]) -> float | None:
    numbers = [one for one in known if one is not None]
    return sum(numbers) / len(numbers) if numbers else None


@checks_types
class ReplicaMonitor(keras.callbacks.Callback):
    """Write throughput, data wait, the slowest worker and the use of GPUs to files.

    `monitor.jsonl` in the folder has a line for each epoch, and for every `every` steps; `monitor/`
    beside it has the same numbers for TensorBoard. The numbers of an epoch are added to its logs,
    and so to the history. The chief writes. It never waits for a step.

    It is called before other callbacks, wherever it is in the list. docs/monitoring.md explains
    each number.

    Args:
        log_dir: The folder to write to; use a new folder for each run.
        every: Also write a line after this many steps.
        tensorboard: Whether to write for TensorBoard, which needs its package.

    Raises:
        UsageError: If `every` is not positive; in `fit`, if the model was not made in the scope
            of a strategy.

    Example:
        >>> import json, tempfile
        >>> import keras
        >>> import numpy as np
        >>> import replicax as rx
        >>> with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ...     model = keras.Sequential([keras.layers.Dense(1)])
        ...     model.compile("sgd", "mse")
        >>> x = np.ones((64, 2), "float32")
        >>> folder = tempfile.mkdtemp()
        >>> monitor = rx.callbacks.ReplicaMonitor(folder, tensorboard=False)
        >>> history = model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[monitor])
        >>> "examples_per_second" in history.history
        True
        >>> lines = map(json.loads, open(f"{folder}/monitor.jsonl"))
        >>> [line["step"] for line in lines if line["kind"] == "epoch"]
        [2, 4]
    """

    comes_first = True
    writes_below = "log_dir"

    def __init__(
        self,
        log_dir: str | Path = "logs",
        *,
        every: int | None = None,
        tensorboard: bool = True,
    ) -> None:
        super().__init__()
        if every is not None and every < 1:
            raise UsageError.of("every", "at least 1", every)
        self.log_dir = Path(log_dir)
        self._every = every
        self._for_tensorboard = tensorboard
        self._lines: TextIO | None = None
        self._events: EventFile | None = None
        self._load: GpuLoad | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = _compat.model_of(self)
        strategy = _compat.strategy_of(model)
        if strategy is None:
            raise UsageError(
                "ReplicaMonitor cannot watch a model that was made outside every scope. Make and "
                "compile it in `with strategy.scope():`."
            )
        self._throughput = throughput_of(model)
        _compat.at_end_of_fit(model, self._close)
        self._throughput.on_step = self._after_step
        if workers.channel_of(model).is_chief:
            self.log_dir.mkdir(parents=True, exist_ok=True)
            self._lines = (self.log_dir / "monitor.jsonl").open("a", encoding="utf-8")
            if self._for_tensorboard:
                self._events = EventFile(self.log_dir / "monitor", 10, 120.0, "")
            if any(device.platform == "gpu" for device in jax.local_devices()):
                self._load = GpuLoad()

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._last: Snapshot | None = None
        self._due = self._throughput.steps + (self._every or math.inf)
        self._before = self._throughput.steps, _applied(_compat.model_of(self))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        found: dict[str, Any] = dict(self._throughput.figures().known())
        steps, applied = self._before
        if applied is not None:
            now = _applied(_compat.model_of(self)) or 0
            found["skipped_steps"] = self._throughput.steps - steps - (now - applied)
        if logs is not None:
            logs.update(found)
        load = self._load.mean() if self._load else []
        used = {"gpu_utilization": load} if load else {}
        self._write("epoch", {**found, **_memory(), **used}, epoch=epoch)

    def _after_step(self) -> None:
        if self._throughput.steps < self._due:
            return
        self._due = self._throughput.steps + (self._every or math.inf)
        self._throughput.mark()
        count = self._throughput.snapshot()
        if self._last is not None:
            self._write("steps", between(self._last, count).known())
        self._last = count

    def _write(self, kind: str, about: dict[str, Any], **place: int) -> None:
        if self._lines is None:
            return
        line = {"kind": kind, "step": self._throughput.steps, **place, "time": time.time(), **about}
        with named(self._lines.name):
            text = json.dumps({key: _as_json(value) for key, value in line.items()})
            print(text, file=self._lines, flush=True)
        if self._events is not None:
            for tag, number in _scalars(about):
                self._events.add(f"{kind}/{tag}", "scalars", np.asarray(number, "f4"), line["step"])

    def _close(self) -> None:
        self._throughput.on_step = None
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()
        if self._load is not None:
            self._load.close()
        self._lines = self._events = self._load = None


def _scalars(about: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Each number with its name; the elements of a list are numbered."""
    for name, value in about.items():
        if isinstance(value, list):
            known = ((number, one) for number, one in enumerate(value) if one is not None)
            yield from ((f"{name}/{number}", one) for number, one in known)
        else:
            yield name, value


def _applied(model: Any) -> int | None:
    """The steps that a loss-scaling optimizer has applied, not skipped; None for others."""
    inner = getattr(model.optimizer, "inner_optimizer", None)
    return None if inner is None else int(_compat.read(_compat.iterations(inner)))


_MEMORY = {
    "memory_bytes": "bytes_in_use",
    "peak_memory_bytes": "peak_bytes_in_use",
    "memory_limit_bytes": "bytes_limit",
}


def _memory() -> dict[str, list[int]]:
    """The memory of each device of this process; empty where JAX has no statistics."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    figures = {name: [one[key] for one in stats if key in one] for name, key in _MEMORY.items()}
    return {name: numbers for name, numbers in figures.items() if numbers}


def _as_json(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by null."""
    if isinstance(value, list):
        return [_as_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
