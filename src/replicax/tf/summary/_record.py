"""Recording summaries, also from compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._core.event_files import BUCKETS, images_of, pixels
from replicax._core.event_files import histogram as histogram_of
from replicax._core.host_calls import array_of, call_on_host, is_compiling
from replicax.tf.summary._state import State, current


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Record a number.

    In compiled code it is recorded whenever that runs, under `run` by the first replica of each
    worker; the writer is the one that was current when the code was traced.

    Args:
        name: What it is called.
        data: The number.
        step: Of which step; None for the current one.
        description: Shown beside it.

    Returns:
        Whether it was recorded; of compiled code, whether it may be.

    Raises:
        UsageError: If there is a writer, but no step.
    """
    return _record(
        name,
        "scalars",
        (array_of(data),),
        lambda value: np.float32(value),
        step,
        description,
    )


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: Any = None
) -> Any:
    """Record how the numbers of an array are spread; see `scalar`."""
    array = array_of(data)
    numpy = jnp if isinstance(array, jax.Array) else np
    found = histogram_of(array, BUCKETS if buckets is None else buckets, numpy)
    return _record(name, "histograms", (found,), np.float64, step, description)


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: Any = None
) -> Any:
    """Record some images of a batch: uint8, or numbers from 0 to 1; see `scalar`."""
    array = array_of(data)
    if array.ndim != 4:
        raise UsageError(
            "Images come as a batch, of the shape (images, height, width, channels). Received: "
            f"shape {tuple(array.shape)}. An axis is missing, or one too many. Write `image[None]` "
            "for a single one."
        )
    batch = pixels(array, max_outputs, jnp if isinstance(array, jax.Array) else np)
    return _record(name, "images", (batch,), images_of, step, description)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Record a text, or an array of texts; see `scalar`."""
    words = np.asarray(data, object)
    encoded = [one.encode() if isinstance(one, str) else one for one in words.reshape(-1)]
    array = np.empty(words.shape, object)
    array.reshape(-1)[:] = encoded
    return _record(name, "text", (), lambda: array, step, description)


def should_record_summaries() -> Any:
    """Whether summaries are recorded now."""
    state = current()
    if state.writer is None:
        return False
    return state.record() if callable(state.record) else state.record


def _record(
    name: str, kind: str, data: tuple[Any, ...], made: Callable[..., Any], step: Any, about: Any
) -> Any:
    state = current()
    wanted = should_record_summaries()
    if state.writer is None or wanted is False:
        return False
    number = _step(state, step, name)
    file = state.writer.file

    def write(wanted: Any, number: Any, *data: Any) -> None:
        if wanted:
            file.add(name, kind, made(*data), int(number), about or "")

    if not is_compiling(wanted, number, *data):
        write(bool(wanted), number, *map(np.asarray, data))
        return bool(wanted)
    frame = current_frame()
    if frame is not None and frame.replica is not None:
        wanted = jnp.logical_and(wanted, _is_first(frame))
    call_on_host(write, jnp.asarray(wanted), jnp.asarray(number), *map(jnp.asarray, data))
    return wanted if isinstance(wanted, Tracer) else True


def _is_first(frame: Any) -> Any:
    """Whether this replica is the first of its worker; the program is the same on all workers."""
    tasks = {name.rpartition("/device:")[0] for name in frame.strategy.extended.worker_devices}
    own = frame.replica.num_replicas_in_sync // len(tasks)
    return frame.replica.replica_id_in_sync_group % own == 0


def _step(state: State, step: Any, name: str) -> Any:
    number = state.step if step is None else step
    if number is None:
        raise UsageError(
            f"A summary is of a step. Received: no step for {name!r}. TensorBoard draws values "
            "over steps. Pass step=, or call `tf.summary.experimental.set_step`, or write "
            "`with writer.as_default(step=…)`."
        )
    return array_of(number)
