"""Runs a script for some steps, and makes a profile of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import jax

from replicax._tools.compare._machine import choose_devices
from replicax._tools.profile._recorder import Plan, Recorder
from replicax._tools.profile._summary import summarized
from replicax._tools.profile._talk import talk_timed
from replicax._tools.script import ended_after, run_program, under
from replicax.strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
)

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._tools.profile._result import Profile


def profile_script(
    path: str,
    arguments: Sequence[str] = (),
    *,
    plan: Plan,
    folder: Path | None = None,
    replicas: int | None = None,
    of_workers: bool = False,
    scale: float = 1.0,
    on_step: Callable[[int], None] = lambda number: None,
) -> Profile:
    """Run a script until it has made as many steps as are planned, and say what they took.

    It trains on `replicas` devices of this machine whichever strategy it makes, or `of_workers` on
    those of all workers of a cluster, of which this is one. Each batch gets `scale` times its rows.
    `on_step` is called at the begin of each training step, with its number from 0.
    """
    chosen = MultiWorkerMirroredStrategy() if of_workers else _strategy(replicas)
    if of_workers and folder is not None:
        folder /= f"worker-{jax.process_index()}"  # the profiler names files by the machine alone
    recorder = Recorder(plan, folder, scale=scale, on_step=on_step)
    with (
        under(chosen) if chosen else contextlib.nullcontext(),
        recorder.recording(),
        talk_timed(),
        ended_after(plan.total),
    ):
        run_program(path, arguments)
    return summarized(recorder, path)


def _strategy(replicas: int | None) -> Strategy | None:
    if replicas is None:
        return None
    devices = choose_devices(replicas)
    return MirroredStrategy(devices) if replicas > 1 else OneDeviceStrategy(devices[0])
