"""Profiles by `tf.summary.trace_on` and `trace_export`: JAX's profiler."""

from __future__ import annotations

import shutil
import tempfile
from typing import Any

import jax

from replicax._core.errors import UsageError

_folder: list[tempfile.TemporaryDirectory[str]] = []


def trace_on(graph: bool = True, profiler: bool = False, profiler_outdir: Any = None) -> None:
    """Begin a profile, if one is asked for; graphs are not recorded.

    Args:
        graph: Not used: there is no graph to show.
        profiler: Whether to profile.
        profiler_outdir: Where to; `trace_export` may say it, too.
    """
    del graph
    if profiler:
        _folder[:] = [tempfile.TemporaryDirectory()]
        jax.profiler.start_trace(_folder[0].name)
    _target[:] = [profiler_outdir]


_target: list[Any] = [None]


def trace_export(name: str, step: Any = None, profiler_outdir: Any = None) -> None:
    """End the profile, and write it where `tensorboard --logdir` finds it.

    Args:
        name: Not used.
        step: Not used.
        profiler_outdir: The folder, if `trace_on` did not say it.

    Raises:
        UsageError: If neither said it.
    """
    del name, step
    if not _folder:
        return
    target = profiler_outdir or _target[0]
    if target is None:
        raise UsageError(
            "A profile is written to a folder. Received: profiler_outdir=None, here and in "
            "`trace_on`. It must go somewhere. Pass the folder that TensorBoard is shown."
        )
    jax.profiler.stop_trace()
    shutil.copytree(_folder[0].name, target, dirs_exist_ok=True)
    _folder.pop().cleanup()


def trace_off() -> None:
    """End the profile, and throw it away."""
    if _folder:
        jax.profiler.stop_trace()
        _folder.pop().cleanup()
