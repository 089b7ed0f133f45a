"""A `TensorBoard` callback without TensorFlow.

Keras' callback imports TensorFlow to write its files; this one writes the same files with the
`tensorboard` package.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from replicax._core import event_files
from replicax._core.errors import UsageError, checks_types
from replicax._core.event_files import part
from replicax._core.placement import to_host
from replicax._keras import _compat, workers

_log = logging.getLogger("replicax")


def graph_of(model: Any) -> Any:
    """A `GraphDef` of a built model: a node for each layer call, a group for each inner model.

    None for a model with a `call` of its own, whose layer calls are unknown.
    """
    function = _function_of(model)
    if function is None:
        return None
    graph = part("compat.proto.graph_pb2").GraphDef()
    names: dict[int, str] = {}
    for layer in function.layers:
        if isinstance(layer, keras.layers.InputLayer):
            names[id(layer.output)] = f"{model.name}/{layer.name}"
            _add(graph, names[id(layer.output)], "InputLayer", [], [layer.output])
    _add_calls(graph, function, f"{model.name}/", names)
    return graph


def _function_of(layer: Any) -> Any:
    if isinstance(layer, keras.Sequential):
        return _compat.functional_of(layer)
    return layer if isinstance(layer, _compat.Functional) else None


def _add_calls(graph: Any, function: Any, scope: str, names: dict[int, str]) -> None:
    """Add the layer calls of a function; `names` maps a tensor's `id` to its node."""
    called: Counter[str] = Counter()
    for layer, inputs, outputs in _compat.nodes_of(function):
        again = f"_{called[layer.name]}" if called[layer.name] else ""
        called[layer.name] += 1
        name = f"{scope}{layer.name}{again}"
        inner = _function_of(layer)
        if inner is None:
            _add(
                graph, name, type(layer).__name__, [names[id(tensor)] for tensor in inputs], outputs
            )
            names |= {id(tensor): name for tensor in outputs}
            continue
        begin, end = keras.tree.flatten(inner.inputs), keras.tree.flatten(inner.outputs)
        names |= {id(one): names[id(tensor)] for one, tensor in zip(begin, inputs, strict=True)}
        _add_calls(graph, inner, f"{name}/", names)
        names |= {id(tensor): names[id(one)] for one, tensor in zip(end, outputs, strict=True)}


def _add(graph: Any, name: str, kind: str, inputs: list[str], outputs: list[Any]) -> None:
    node = graph.node.add(name=name, op=kind, input=inputs)
    for tensor in outputs:
        sizes = node.attr["_output_shapes"].list.shape.add()
        for size in tensor.shape:
            sizes.dim.add(size=-1 if size is None else size)


@checks_types
class TensorBoard(keras.callbacks.Callback):
    """Write losses, metrics, weights and profiles where `tensorboard --logdir` finds them.

    Files and names are the same as in Keras' callback: `train/` and `validation/` below `log_dir`,
    `epoch_loss`, `epoch_accuracy`, … per epoch, `batch_loss`, … per batch. With several
    workers, the chief writes.

    Args:
        log_dir: The folder to write to; use a new folder for each run.
        histogram_freq: The number of epochs between two histograms of the weights; 0 or None for
            none.
        write_graph: Whether to write the layers of a sequential or functional model as a graph.
        write_images: Ignored with a warning: no images of weights are written.
        write_steps_per_second: Whether to write the number of steps per second.
        update_freq: `"epoch"`, or the number of batches between two writes of batch scalars, or
            `"batch"` for 1. Writing the scalars of a batch waits for its step.
        profile_batch: The batch to profile, counted from 1, or the first and the last one, as a
            pair or as `"10,20"`; 0 for none. TensorBoard shows it with the package `xprof`.
        embeddings_freq: Ignored with a warning: nothing is written for the projector.
        embeddings_metadata: As `embeddings_freq`.

    Raises:
        UsageError: If the `tensorboard` package is missing, or an argument is not valid.

    Example:
        >>> import replicax as rx
        >>> callback = rx.callbacks.TensorBoard("logs/1", histogram_freq=1, profile_batch=(5, 8))
    """

    writes_below = "log_dir"

    def __init__(
        self,
        log_dir: str | Path = "logs",
        histogram_freq: int | None = 0,
        write_graph: bool = True,
        write_images: bool = False,
        write_steps_per_second: bool = False,
        update_freq: str | int = "epoch",
        profile_batch: int | str | tuple[int, int] = 0,
        embeddings_freq: int = 0,
        embeddings_metadata: str | dict[str, str] | None = None,
    ) -> None:
        super().__init__()
        if update_freq == "batch":
            update_freq = 1
        if update_freq != "epoch" and not (isinstance(update_freq, int) and update_freq > 0):
            raise UsageError.of(
                "update_freq", "'epoch', 'batch' or a positive integer", update_freq
            )
        if write_images or embeddings_freq:
            _log.warning(
                "TensorBoard: `write_images` and `embeddings_freq` do nothing here; neither images "
                "of weights nor tables for the projector are written."
            )
        event_files.part("summary.writer.event_file_writer")  # fails before training, not in it
        self.log_dir = Path(log_dir)
        self.histogram_freq = histogram_freq
        self.write_graph = write_graph
        self.write_steps_per_second = write_steps_per_second
        self.update_freq = update_freq
        self._first_profiled, self._last_profiled = _profiled(profile_batch)
        self._profile, self._step = contextlib.ExitStack(), contextlib.ExitStack()
        self._files: dict[str, event_files.EventFile] = {}
        self._seen_batches = 0
        self._epoch_began = self._written = (0.0, 0)  # pairs (time, number of steps)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._seen_batches = 0
        self._written = time.perf_counter(), 0
        model = _compat.model_of(self)
        if not self._writes:
            return
        _compat.at_end_of_fit(model, self._profile.close)  # also if `fit` fails
        graph = graph_of(model) if self.write_graph else None
        if graph is not None:
            self._file("train").add_graph(graph)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        number = self._seen_batches + 1
        if number == self._first_profiled and self._writes:
            self._profile.enter_context(jax.profiler.trace(str(self.log_dir / "train")))
        if self._first_profiled <= number <= self._last_profiled:
            self._step.enter_context(jax.profiler.StepTraceAnnotation("train", step_num=number))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._seen_batches += 1
        step = self._seen_batches
        self._step.close()
        if step == self._last_profiled:
            for value in (logs or {}).values():
                float(value)  # wait: the profile includes the work of the devices
            self._profile.close()
        if isinstance(self.update_freq, int) and step % self.update_freq == 0 and self._writes:
            values = {name: float(value) for name, value in (logs or {}).items()}
            if self.write_steps_per_second:
                # Steps overlap, so the rate is measured between two writes.
                values["steps_per_second"] = _rate(self._written, step)
            self._written = time.perf_counter(), step
            self._write("train", "batch_", values, step)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if self.write_steps_per_second:
            self._epoch_began = time.perf_counter(), self._iterations()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        if not self._writes:
            return
        logs = dict(logs or {})
        validation = {name[4:]: logs.pop(name) for name in list(logs) if name.startswith("val_")}
        model: Any = self.model
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        rate = getattr(optimizer, "learning_rate", None)
        if rate is not None:
            logs["learning_rate"] = rate
        if self.write_steps_per_second:
            logs["steps_per_second"] = _rate(self._epoch_began, self._iterations())
        self._write("train", "epoch_", logs, epoch)
        self._write("validation", "epoch_", validation, epoch)
        if self.histogram_freq and epoch % self.histogram_freq == 0:
            self._write_weights(epoch)

    def on_test_end(self, logs: dict[str, Any] | None = None) -> None:
        if self._writes:
            values = {f"{name}_vs_iterations": value for name, value in (logs or {}).items()}
            self._write("validation", "evaluation_", values, self._iterations())

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._profile.close()
        for file in self._files.values():
            file.close()
        self._files.clear()

    @property
    def _writes(self) -> bool:
        return workers.channel_of(_compat.model_of(self)).is_chief

    def _file(self, run: str) -> event_files.EventFile:
        if run not in self._files:
            self._files[run] = event_files.EventFile(self.log_dir / run, 10, 120, ".v2")
        return self._files[run]

    def _write(self, run: str, prefix: str, values: dict[str, Any], step: int) -> None:
        if values:
            for name, value in values.items():
                number = np.asarray(float(value), np.float32)
                self._file(run).add(f"{prefix}{name}", "scalars", number, step)
            self._file(run).flush()

    def _iterations(self) -> int:
        optimizer: Any = getattr(self.model, "optimizer", None)
        return 0 if optimizer is None else int(_compat.iterations(optimizer))

    def _write_weights(self, epoch: int) -> None:
        model: Any = self.model
        file = self._file("train")
        for variable in model.weights:
            name, value = variable.path.replace(":", "_"), _value(variable)
            counted = event_files.histogram(value, event_files.BUCKETS, np)
            file.add(f"{name}/histogram", "histograms", counted.astype(np.float64), epoch)
        file.flush()


def _profiled(given: Any) -> tuple[int, int]:
    """The first and the last batch of a profile."""
    parts = given.split(",") if isinstance(given, str) else given
    try:
        first, last = map(int, parts if isinstance(parts, list | tuple) else (parts, parts))
    except (TypeError, ValueError):
        first, last = -1, -1
    if not 0 <= first <= last or (first == 0 and last > 0):
        raise UsageError.of(
            "profile_batch",
            "0 for no profile, a batch counted from 1, or a range such as (5, 8)",
            given,
        )
    return first, last


def _rate(since: tuple[float, int], steps: int) -> float:
    when, before = since
    return (steps - before) / max(time.perf_counter() - when, 1e-9)


def _value(variable: Any) -> np.ndarray:
    return to_host(_compat.read(variable)).astype(np.float32)
