"""`tf.summary` and `tf.profiler`: numbers, images, texts and profiles for TensorBoard.

Where they go is a state of this thread: the writer, the step, and whether they are recorded.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core import event_files
from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._core.host_calls import array_of, call_on_host, is_compiling
from replicax.data._host import ENCODED

if TYPE_CHECKING:
    from pathlib import Path


@final
@dataclass(frozen=True)
class _State:
    writer: SummaryWriter | None = None
    step: Any = None
    record: Any = True


_nowhere = _State()
_state: ContextVar[_State] = ContextVar("replicax_summaries", default=_nowhere)


@contextlib.contextmanager
def _changed(**changes: Any) -> Generator[Any, None, None]:
    """Change the state for a `with` block."""
    token = _state.set(replace(_state.get(), **changes))
    try:
        yield changes.get("writer")
    finally:
        _state.reset(token)


def set_step(step: Any) -> None:
    """Let this be the step of summaries that have none; a variable is read each time."""
    _state.set(replace(_state.get(), step=step))


def get_step() -> Any:
    """The step of `set_step`, or of `as_default`."""
    return _state.get().step


@contextlib.contextmanager
def record_if(condition: bool | Callable[[], Any] | Any) -> Generator[None, None, None]:
    """Record summaries of a `with` block if a condition holds, also one of compiled code."""
    with _changed(record=condition):
        yield


class SummaryWriter:
    """Writes summaries to the event file of a run."""

    file: event_files.EventFile | None

    def __init__(
        self,
        logdir: str | Path,
        max_queue: int | None = None,
        flush_millis: int | None = None,
        filename_suffix: str | None = None,
    ) -> None:
        seconds = 120 if flush_millis is None else flush_millis / 1000
        suffix = filename_suffix or ".v2"
        self.file = event_files.EventFile(logdir, max_queue or 10, seconds, suffix)

    def as_default(self, step: Any = None) -> Any:
        """Let summaries of a `with` block go here, and be of this step if they say none."""
        return _changed(writer=self) if step is None else _changed(writer=self, step=step)

    def set_as_default(self, step: Any = None) -> None:
        """Let summaries go here from now on."""
        state = replace(_state.get(), writer=self)
        _state.set(state if step is None else replace(state, step=step))

    def init(self) -> None:
        """Nothing: the file is there."""

    def flush(self) -> None:
        """Write all, also what compiled code has under way."""
        if self.file is not None:
            self.file.flush()

    def close(self) -> None:
        """Write all, and end."""
        if self.file is not None:
            self.file.close()


@final
class NoopWriter(SummaryWriter):
    """A writer that writes nothing."""

    def __init__(self) -> None:
        self.file = None


def create_file_writer(
    logdir: str | Path,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
    experimental_trackable: bool = False,
    experimental_mesh: Any = None,
) -> SummaryWriter:
    """A writer of summaries, which `tensorboard --logdir` shows; a new run wants a new folder.

    Raises:
        UsageError: If the `tensorboard` package is missing.

    Example:
        >>> import tempfile
        >>> import replicax.tf as tf
        >>> writer = tf.summary.create_file_writer(tempfile.mkdtemp())
        >>> with writer.as_default():
        ...     tf.summary.scalar("loss", 0.5, step=1)
        True
        >>> writer.close()
    """
    return SummaryWriter(logdir, max_queue, flush_millis, filename_suffix)


def create_noop_writer() -> NoopWriter:
    """A writer that writes nothing."""
    return NoopWriter()


def flush(writer: Any = None, name: str | None = None) -> None:
    """Write all that a writer has, by default the current one."""
    writer = writer or _state.get().writer
    if writer is not None:
        writer.flush()


def scalar(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Record a number.

    In compiled code it is recorded whenever that runs, under `run` by the first replica of each
    worker; the writer is the one that was current when the code was traced.

    Returns:
        Whether it was recorded; of compiled code, whether it may be.

    Raises:
        UsageError: If there is a writer, but no step.
    """
    return _record(name, "scalars", (array_of(data),), np.float32, step, description)


def histogram(
    name: str, data: Any, step: Any = None, buckets: int | None = None, description: Any = None
) -> Any:
    """Record how the numbers of an array are spread; see `scalar`."""
    array = array_of(data)
    numpy = jnp if isinstance(array, jax.Array) else np
    found = event_files.histogram(array, event_files.BUCKETS if buckets is None else buckets, numpy)
    return _record(name, "histograms", (found,), np.float64, step, description)


def image(
    name: str, data: Any, step: Any = None, max_outputs: int = 3, description: Any = None
) -> Any:
    """Record some images of a batch: uint8, or numbers from 0 to 1; see `scalar`."""
    array = array_of(data)
    if array.ndim != 4:
        raise UsageError(
            f"Images must have shape (images, height, width, channels), got {tuple(array.shape)}. "
            "Write `image[None]` for a single one."
        )
    numpy = jnp if isinstance(array, jax.Array) else np
    batch = event_files.pixels(array, max_outputs, numpy)
    return _record(name, "images", (batch,), event_files.images_of, step, description)


def text(name: str, data: Any, step: Any = None, description: str | None = None) -> Any:
    """Record a text, or an array of texts; see `scalar`."""
    array = np.asarray(ENCODED(np.asarray(data, object)), object)
    return _record(name, "text", (), lambda: array, step, description)


def should_record_summaries() -> Any:
    """Whether summaries are recorded now."""
    state = _state.get()
    if state.writer is None or state.writer.file is None:
        return False
    return state.record() if callable(state.record) else state.record


def _record(
    name: str, kind: str, data: tuple[Any, ...], made: Callable[..., Any], step: Any, about: Any
) -> Any:
    state, wanted = _state.get(), should_record_summaries()
    file = state.writer.file if state.writer else None
    if file is None or wanted is False:
        return False
    number = _step(state, step, name)

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


def _step(state: _State, step: Any, name: str) -> Any:
    number = state.step if step is None else step
    if number is None:
        raise UsageError(
            f"No step for the summary {name!r}. Pass step=, call "
            "`tf.summary.experimental.set_step`, or write `with writer.as_default(step=…)`."
        )
    return array_of(number)


# The profile under way, and the folder that `trace_on` was given for it.
_profile: list[tuple[tempfile.TemporaryDirectory[str], Any]] = []


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: Any = None) -> None:
    """Begin a profile, if one is asked for; graphs are not recorded."""
    if profiler:
        _profile[:] = [(tempfile.TemporaryDirectory(), profiler_outdir)]
        jax.profiler.start_trace(_profile[0][0].name)


def trace_export(name: str, step: Any = None, profiler_outdir: Any = None) -> None:
    """End the profile, and write it to this folder, or to the one that `trace_on` was given.

    Raises:
        UsageError: If neither said it.
    """
    if not _profile:
        return
    folder, outdir = _profile[0]
    target = profiler_outdir or outdir
    if target is None:
        raise UsageError(
            "No folder for the profile: `profiler_outdir` is None here and in `trace_on`. Pass "
            "the folder that TensorBoard reads."
        )
    jax.profiler.stop_trace()
    shutil.copytree(folder.name, target, dirs_exist_ok=True)
    _profile.pop()
    folder.cleanup()


def trace_off() -> None:
    """End the profile, and throw it away."""
    if _profile:
        jax.profiler.stop_trace()
        _profile.pop()[0].cleanup()


class ProfilerOptions(NamedTuple):
    """How much is noted of the host and of Python; JAX notes devices always, and from the start."""

    host_tracer_level: int = 2
    python_tracer_level: int = 0
    device_tracer_level: int = 1
    delay_ms: int | None = None


def start(logdir: Any, options: ProfilerOptions | None = None) -> None:
    """Begin a profile."""
    given = options or ProfilerOptions()
    chosen = jax.profiler.ProfileOptions()
    chosen.host_tracer_level = given.host_tracer_level
    chosen.python_tracer_level = given.python_tracer_level
    jax.profiler.start_trace(str(logdir), profiler_options=chosen)


def stop(save: bool = True) -> None:
    """End the profile, and write it.

    **Differs from TF:** it is written in any case.
    """
    jax.profiler.stop_trace()


@contextlib.contextmanager
def Profile(logdir: Any, options: ProfilerOptions | None = None) -> Any:
    """Profile a `with` block."""
    start(logdir, options)
    try:
        yield
    finally:
        stop()


def Trace(name: str, **kwargs: Any) -> Any:
    """Name a `with` block in a profile; with `step_num=`, it is a step of training."""
    if kwargs.pop("_r", None) or "step_num" in kwargs:
        return jax.profiler.StepTraceAnnotation(name, **kwargs)
    return jax.profiler.TraceAnnotation(name, **kwargs)


def start_server(port: int) -> None:
    """Listen for TensorBoard, which can ask for a profile."""
    jax.profiler.start_server(port)
