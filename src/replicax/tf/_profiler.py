"""`tf.profiler`: profiles of a program, or of a part of it, which TensorBoard shows."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import jax


class ProfilerOptions(NamedTuple):
    """How much is noted of the host, of Python and of the devices."""

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
    chosen.device_tracer_level = given.device_tracer_level
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
