"""Several workers: the same training and the same timed rounds, in processes of their own.

They are timed separately, because a process that has used JAX alone cannot join them.
`rx.launch.run` ends them, even after Ctrl-C.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import replicax as rx
from replicax._tools.compare import _data, _measure
from replicax._tools.compare._comparison import Place
from replicax._tools.compare._places import held_by, pieces_of
from replicax._tools.compare._progress import Silent
from replicax._tools.compare._settings import MULTI_WORKER, Settings
from replicax._tools.compare._strategies import Way

if TYPE_CHECKING:
    from collections.abc import Sequence

    import keras
    import numpy as np

    from replicax._tools.compare._measure import Round, Training

# Workers need an accelerator each; any number of them shares the CPU.
_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax"}


def in_workers(
    settings: Settings, initial: Sequence[np.ndarray], round_: Round
) -> tuple[Training, tuple[float, ...]]:
    """Train under `MultiWorkerMirroredStrategy` on this machine, one device for each worker.

    Returns the first worker's measurements with the places of all, and the seconds of each timed
    round.
    """
    results = rx.launch.run(
        f"{__name__}:work",
        num_workers=settings.workers or 1,
        devices_per_worker=1,
        args=(settings, list(initial), round_),
        env=_ENVIRONMENT,
    )
    training, seconds = results[0]
    found = (place for each, _ in results for place in each.places)
    return replace(training, places=tuple(found)), seconds


def work(
    settings: Settings, initial: Sequence[np.ndarray], round_: Round
) -> tuple[Training, tuple[float, ...]]:
    """The work of each worker."""
    way = Way(MULTI_WORKER, rx.MultiWorkerMirroredStrategy, _places_here)
    with _measure.exact_products(), contextlib.ExitStack() as ends:
        data = _data.load(settings)
        trial = _measure.train(
            way, settings=settings, data=data, initial=initial, listener=Silent(), ends=ends
        )
        rounds = [_measure.Round(round_.rows, 1), *[round_] * settings.repeats]
        _warm_up, *seconds = (
            _measure.time_round(trial, each, settings=settings, data=data) for each in rounds
        )
    return trial.training, tuple(seconds)


def _places_here(strategy: rx.Strategy, model: keras.Model, rows: int) -> tuple[Place, ...]:
    """The only device of this worker, under the worker's name."""
    number = strategy.cluster_resolver.task_id
    (held,), (piece,) = held_by(model).values(), pieces_of(strategy, rows)
    return (Place(f"worker {number}", *held, computes=True, rows=piece),)
