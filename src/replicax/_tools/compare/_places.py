"""The places of a strategy's variables and batches: found by looking, not by its name."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

import replicax as rx
from replicax._tools.compare._comparison import Place
from replicax._tools.compare._machine import device_name

if TYPE_CHECKING:
    import keras

_EVERY_SERVER = "every server"


def places(strategy: rx.Strategy, model: keras.Model, rows: int) -> tuple[Place, ...]:
    """The devices of a strategy here, with their variables and their rows of a full batch.

    The model was trained under it, so that its optimizer has its variables.
    """
    held = held_by(model)
    computing = dict(zip(strategy.extended.worker_devices, pieces_of(strategy, rows), strict=True))
    return tuple(
        Place(name, *held.get(name, (0, 0)), computes=name in computing, rows=computing.get(name))
        for name in dict.fromkeys([*computing, *held])
    )


def places_of_servers(model: keras.Model, workers: int) -> tuple[Place, ...]:
    """Parameter servers, with the variables they hold, and workers, which take batches in turn."""
    held = held_by(model)
    count, size = held.pop(_EVERY_SERVER, (0, 0))
    return (
        *(
            Place(name, held[name][0] + count, held[name][1] + size, computes=False)
            for name in sorted(held)
        ),
        *(Place(f"worker {number}", 0, 0, computes=True) for number in range(workers)),
    )


def pieces_of(strategy: rx.Strategy, rows: int) -> list[tuple[int, int]]:
    """The rows of a batch that each replica of this process gets, (first, behind the last).

    Found by a batch that holds the row numbers.
    """
    batch = rx.data.Dataset.from_tensor_slices(np.arange(rows)).batch(rows)
    share: Any = next(iter(strategy.experimental_distribute_dataset(batch)))
    return [_ends(np.asarray(piece)) for piece in strategy.experimental_local_results(share)]


def held_by(model: keras.Model) -> dict[str, tuple[int, int]]:
    """The number and bytes of variables of a model and its optimizer on each device."""
    optimizer: Any = model.optimizer
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for variable in (*model.weights, *optimizer.variables):
        for name, size in _parts(variable):
            counts[name] += 1
            sizes[name] += size
    return {name: (counts[name], sizes[name]) for name in counts}


def _parts(variable: Any) -> list[tuple[str, int]]:
    """The places of a variable, with the bytes there."""
    task = getattr(variable, "device", None)
    if task is not None:  # on one parameter server; counters of the optimizer are on each of them
        number = str(task).rpartition("task:")[2]
        name = f"server {number}" if number.isdecimal() else _EVERY_SERVER
        return [(name, variable.value.nbytes)]
    shards = variable.value.addressable_shards
    return [(device_name(shard.device), shard.data.nbytes) for shard in shards]


def _ends(numbers: np.ndarray) -> tuple[int, int]:
    return (int(numbers[0]), int(numbers[-1]) + 1) if len(numbers) else (0, 0)
