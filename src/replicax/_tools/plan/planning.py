"""`rx.plan`: compile a training step for machines one does not have, and say what it needs."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from replicax._core.errors import UsageError, checks_types
from replicax._tools.plan.hlo import wire_bytes_by_kind
from replicax._tools.plan.planned_step import PlannedStep, planned_step
from replicax._tools.plan.result import Plan, Row
from replicax._tools.plan.scaling import scale as scale_rows
from replicax._tools.plan.scaling import with_halves
from replicax._tools.plan.step import CompiledStep, compile_and_read, rows_of, with_rows
from replicax._tools.plan.targets import Target, not_kept, strategy_for, target
from replicax._tools.progress import Listener

# Compilations for one search of the largest batch.
TRIES = 6


@checks_types
def plan(
    model_or_step: Any,
    batch: Any = None,
    *,
    topologies: Sequence[str] = ("v5e:2x4",),
    strategies: Sequence[str] = ("mirrored",),
    batch_size: int | None = None,
    find_largest: bool = False,
    scale: Sequence[int] = (),
    listener: Listener | None = None,
) -> Plan:
    """Compile a model's training step for other machines, and read what it needs there.

    The step is the one that `fit` runs, compiled by the compiler of those machines; for TPUs that
    is Google's, which needs no TPU. Nothing is run, and no values are used.

    Args:
        model_or_step: A compiled Keras model; or a step of a custom loop, a function for
            `strategy.run`, which is traced outside every scope first.
        batch: A batch as `fit` takes it, `(x, y)` or `(x, y, sample_weight)`: arrays or
            `jax.ShapeDtypeStruct`s. By default what the model's inputs, outputs and loss suggest.
            For a step the tuple of its arguments, for all replicas together.
        topologies: Slices of TPUs in chips, such as `v5e:4x4` and `v4:2x2x2`, or devices of this
            machine, such as `cpu:8`.
        strategies: Names of strategies: `one_device`, `mirrored`, `zero1`, `zero3`,
            `model_parallel:M`.
        batch_size: The rows of the whole batch; by default the rows of `batch`.
        find_largest: Whether to look for the largest batch that fits, with more compilations.
        scale: Numbers of chips, such as `(1, 64, 4096)`, on which the bytes that a device sends
            follow from the largest topology of each kind. If it is alone of its kind, half of it
            is compiled as a check.
        listener: Told how far it is.

    Returns:
        The plan: `print(plan.table())`, `plan.to_json()`, `plan.plot("plan.png")`.

    Raises:
        UsageError: If the model says nothing about its batches, a topology or a strategy is not
            known, or the compiler for TPUs is not installed.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("adam", "mse")
        >>> found = rx.plan(model, topologies=["cpu:1"], batch_size=8)
        >>> found.rows[0].memory.parameters  # 4 x 2 weights and 2 biases of 4 bytes
        40
    """
    planned, listener = planned_step(model_or_step, batch), listener or Listener()
    rows = batch_size or rows_of(planned.batch)
    pairs = _pairs(with_halves(topologies) if scale else topologies, strategies)
    made = [_row(planned, *pair, rows, listener, find_largest=find_largest) for pair in pairs]
    scaling = scale_rows(made, scale) if scale else ()
    return Plan(planned.name, planned.parameters, tuple(made), scaling)


def _pairs(topologies: Sequence[str], strategies: Sequence[str]) -> list[tuple[Target, str, Any]]:
    if not topologies or not strategies:
        raise UsageError(
            f"Nothing to plan: got {len(topologies)} topologies and {len(strategies)} strategies. "
            'Pass at least one of each, such as topologies=["v5e:2x4"].'
        )
    return [
        (one, name, strategy_for(name, one))
        for one in map(target, topologies)
        for name in strategies
    ]


def _row(
    planned: PlannedStep,
    one: Target,
    name: str,
    strategy: Any,
    rows: int,
    listener: Listener,
    *,
    find_largest: bool,
) -> Row:
    """Compile for a batch of this many rows, and perhaps for others."""
    listener.begin(f"{one.name} {name}", steps=1 + TRIES if find_largest else 1)
    devices = len(strategy.extended.distribution.topology.devices)

    @functools.cache
    def read(rows: int) -> CompiledStep:
        listener.report(f"compiling for a batch of {rows}")
        lower = functools.partial(planned.lower, with_rows(planned.batch, rows), strategy)
        with not_kept() if one.is_described else contextlib.nullcontext():
            found = compile_and_read(lower, devices)
        listener.advance()
        return found

    began = time.perf_counter()
    found = read(rows)
    seconds = time.perf_counter() - began
    replicas = strategy.num_replicas_in_sync
    # The compiler knows better than the catalogue.
    capacity = found.available or (one.chip.memory_bytes if one.chip else None)
    fits = False
    if found.memory is not None:
        fits = None if capacity is None else found.memory.total <= capacity
    most = None
    if find_largest and capacity:

        def needs(rows: int) -> int | None:
            return read(rows).needs(capacity)

        most = largest(needs, rows, capacity=capacity, multiple=replicas, tries=TRIES)
    listener.end({None: "compiled", True: "fits", False: "does not fit"}[fits])
    return Row(
        topology=one.name,
        strategy=name,
        devices=devices,
        replicas=replicas,
        batch=rows,
        chip=one.chip,
        capacity=capacity,
        fits=fits,
        needed=found.needed,
        memory=found.memory,
        flops=found.flops,
        memory_traffic=found.memory_traffic,
        collectives=found.collectives,
        wire=wire_bytes_by_kind(found.collectives),
        largest=most,
        compile_seconds=seconds,
    )


# The largest batch is found to a sixteenth, which suffices.
_PRECISION = 16
# A small batch does not show how memory grows, because the chip's caches hold all of it.
_FURTHEST = 1024


@final
@dataclass(frozen=True)
class LargestBatch:
    fits: int  # the largest batch that was tried and fits; 0 if none did
    too_large: int | None  # the smallest that was tried and does not fit; None if all did
    is_known: bool  # that a batch larger by a sixteenth does not fit, as far as can be seen


def largest(
    needs: Callable[[int], int | None], start: int, *, capacity: int, multiple: int, tries: int
) -> LargestBatch:
    """Find the largest batch whose step fits into a memory.

    The need of a step grows with the batch in a nearly straight line, so two tries tell where to
    look; bisection takes over where they are wrong. `needs` returns the bytes for a number of rows,
    None if it is known only that they are too many; it is called `tries` times at most. Batches are
    multiples of the number of replicas.
    """
    sizes: dict[int, int] = {}
    low, high, rows = 0, None, _rounded(start, multiple)
    for _ in range(tries):
        size = needs(rows)
        if size is not None:
            sizes[rows] = size
        if size is not None and size <= capacity:
            low = max(low, rows)
        else:
            high = rows if high is None else min(high, rows)
        guess = _on_line(sizes, capacity)
        if _is_known(low, high, guess, multiple):
            return LargestBatch(low, high, is_known=True)
        rows = _next(guess, low, high, multiple)
    return LargestBatch(low, high, is_known=False)


def _is_known(low: int, high: int | None, guess: int | None, multiple: int) -> bool:
    close = max(multiple, low // _PRECISION)
    if high is not None and high - low <= close:
        return True
    return low > 0 and guess is not None and abs(guess - low) <= close


def _next(guess: int | None, low: int, high: int | None, multiple: int) -> int:
    """The batch to try: a little below the line's answer, but inside the open interval."""
    aimed = None if guess is None else guess - guess // (2 * _PRECISION)
    if high is None:
        wanted = aimed if aimed is not None and aimed > low else 2 * low
        return max(_rounded(min(wanted, _FURTHEST * low), multiple), low + multiple)
    if aimed is None or not low < aimed < high:
        aimed = (low + high) // 2
    return min(max(_rounded(aimed, multiple), low + multiple), max(high - multiple, multiple))


def _on_line(sizes: dict[int, int], capacity: int) -> int | None:
    """The batch that fills the memory, on the line through the two tries nearest to that.

    With one try, on the line from zero.
    """
    nearest = sorted(sizes.items(), key=lambda tried: abs(tried[1] - capacity))[:2]
    if not nearest:
        return None
    (first, lower), (second, upper) = sorted([*nearest, (0, 0)])[-2:]
    if upper <= lower:
        return None
    return int(second + (capacity - upper) * (second - first) / (upper - lower))


def _rounded(rows: int, multiple: int) -> int:
    return max(multiple, rows // multiple * multiple)
