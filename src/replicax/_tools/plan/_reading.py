"""What a compiled program says of itself: memory, arithmetic, collective operations.

A program that is too large for a chip's memory is not compiled to the end; then the compiler's
error has the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._tools.plan._collectives import Collective, collectives

if TYPE_CHECKING:
    from replicax._tools.plan._compiled import Lowered


@final
@dataclass(frozen=True)
class Memory:
    """Bytes that one device needs for a step.

    Args:
        parameters: The model's variables.
        optimizer: The variables of optimizer and metrics.
        batch: The device's part of the batch.
        temporaries: Activations, gradients, and whatever else the step makes on its way.
        rest: Padding of arrays, new values that do not take over the memory of old ones, code.
    """

    parameters: int
    optimizer: int
    batch: int
    temporaries: int
    rest: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.optimizer + self.batch + self.temporaries + self.rest


@final
@dataclass(frozen=True)
class Reading:
    """A compiled step; operations and bytes are those of one device, as XLA counts them."""

    memory: Memory
    flops: float
    memory_traffic: float
    collectives: tuple[Collective, ...]


@final
@dataclass(frozen=True)
class TooLarge:
    """A step that the compiler refused because of its memory, in bytes where it says so."""

    needed: int | None
    available: int | None
    said: str


def compile_and_read(lowered: Lowered, devices: int) -> Reading | TooLarge:
    """Compile a step and read what it needs."""
    try:
        compiled = lowered.program.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return too_large(str(error))
    costs = _costs(compiled)
    return Reading(
        memory=_memory(lowered, compiled.memory_analysis()),
        flops=costs.get("flops", 0.0),
        memory_traffic=costs.get("bytes accessed", 0.0),
        collectives=collectives(compiled.as_text(), devices),
    )


def _memory(lowered: Lowered, found: Any) -> Memory:
    arguments = lowered.parameters + lowered.optimizer + lowered.batch
    padding = max(0, found.argument_size_in_bytes - arguments)
    outputs = max(0, found.output_size_in_bytes - found.alias_size_in_bytes)
    return Memory(
        lowered.parameters,
        lowered.optimizer,
        lowered.batch,
        temporaries=found.temp_size_in_bytes,
        rest=padding + outputs + found.generated_code_size_in_bytes,
    )


def _costs(compiled: Any) -> dict[str, float]:
    found = compiled.cost_analysis() or {}
    return found[0] if isinstance(found, list | tuple) else found


_SIZES = re.compile(r"(\d+(?:\.\d+)?)\s?([KMGT]?)(?:i?B)?\b")
_NEEDED = re.compile(r"(?:total memory required[^(]*\(|[Uu]sed )(\d[\d.]*[KMGT]?)")
_AVAILABLE = re.compile(r"(?:available HBM \(|[Uu]sed [\d.]+[KMGT]? of )(\d[\d.]*[KMGT]?)")


def too_large(said: str) -> TooLarge:
    """The numbers in the compiler's error for a program that is too large.

    Such as `… the total memory required for HLO temporaries (180.19G) exceeds available HBM
    (15.75G).`
    """
    needed, available = _NEEDED.search(said), _AVAILABLE.search(said)
    return TooLarge(
        needed=_bytes(needed[1]) if needed else None,
        available=_bytes(available[1]) if available else None,
        said=said.splitlines()[0],
    )


def _bytes(text: str) -> int | None:
    found = _SIZES.match(text)
    if found is None:
        return None
    return round(float(found[1]) * 1024 ** (" KMGT".index(found[2]) if found[2] else 0))
