"""What a step that ran out of memory needs, by its compiled program, and which batch would fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from replicax._core.machine.memory import free_memory, size
from replicax._core.topology import device_name


def needs(compiled: Any, variables: tuple[Sequence[Any], Sequence[Any]], arrays: Any) -> str:
    """What a step needs on each device, beside what there is, in words.

    `compiled` is what `jax.jit` gave; `variables` are the values of those that are written, and of
    the others. `arrays` are the batches of `fit`, or what the replicas get. The program is compiled
    already, so its analysis costs only a look.
    """
    analysis = compiled.trace(*variables, arrays).lower().compile().memory_analysis()
    held = [value for values in variables for value in values]
    devices = sorted(held[0].sharding.device_set, key=lambda device: device.id)
    fixed, arguments = sum(map(_bytes_on_a_device, held)), analysis.argument_size_in_bytes
    outputs = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    total = arguments + analysis.temp_size_in_bytes + outputs
    said = (
        f"The step needs {size(total)} on each of {len(devices)} device(s): {size(fixed)} for "
        f"variables, {size(max(0, arguments - fixed))} for its arguments, "
        f"{size(analysis.temp_size_in_bytes)} for temporaries, {size(outputs)} for outputs. "
    )
    here = [one for one in devices if one.process_index == jax.process_index()]
    rooms = {device: free_memory([device]) for device in here}
    known = {device: room for device, room in rooms.items() if room is not None}
    if not known:
        return said
    fullest = min(known, key=lambda device: known[device])
    room = known[fullest] + arguments  # these are there already
    said += f"{device_name(fullest)} has {size(room)} for it. "
    if room >= total:  # taken by another program meanwhile, or in pieces
        return said
    if room <= fixed:
        return f"{said}No batch fits beside the variables. "
    share = (room - fixed) / (total - fixed)
    return f"{said}By proportion {_rows(share, arrays, len(devices))} would fit. "


def _rows(share: float, arrays: Any, devices: int) -> str:
    if not isinstance(arrays[0], tuple):  # what replicas get: their rows may be on any axis
        return f"a batch {share:.2f} times as large"
    rows = jax.tree.leaves(arrays[0])[0].shape[0]
    return f"a batch of {int(share * rows) // devices * devices} instead of {rows} rows"


def _bytes_on_a_device(value: Any) -> int:
    shape = value.sharding.shard_shape(value.shape)
    return int(np.prod(shape, dtype=np.int64)) * value.dtype.itemsize
