"""Steps that each replica takes by itself, and what becomes of them when the replicas meet.

On a network that is slow beside the devices, replicas may train alone for some steps and then take
the mean of what they have come to: local SGD (Stich, 2019, arXiv:1805.09767). One program takes the
steps and ends with the meeting, so variables are always equal everywhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._core.context import current_frame, entered
from replicax._core.errors import UsageError
from replicax._core.reduce import ReduceOp, SyncGroup
from replicax._fit.step_program import are_alike
from replicax._keras import _compat
from replicax._program.capture import CaptureScope

if TYPE_CHECKING:
    from replicax._core.options import CommunicationOptions


@final
@dataclass(frozen=True)
class LocalSteps:
    """How many steps replicas take alone before they meet, and how they go on from there."""

    every: int

    def __post_init__(self) -> None:
        if not isinstance(self.every, int) or self.every < 1:
            raise UsageError.of(
                "sync_every",
                "a whole number of at least 1",
                self.every,
                "Pass 1 to combine every gradient.",
            )

    @contextlib.contextmanager
    def several_at_once(self, model: Any) -> Generator[None, None, None]:
        """While a model is fitted, its loop hands over all steps up to a meeting at once."""
        before = model.steps_per_execution
        if before > 1 and before % self.every:
            raise UsageError(
                f"`steps_per_execution` must be a multiple of sync_every={self.every}, got "
                f"{before}. Leave it out, or pass a multiple."
            )
        model.steps_per_execution = max(before, self.every)
        try:
            yield
        finally:
            model.steps_per_execution = before

    def rounds(self, batches: Sequence[Any]) -> Iterator[list[Any]]:
        """Batches from meeting to meeting: no more than so many, and all of one shape."""
        found: list[Any] = []
        for batch in batches:
            if len(found) == self.every or (found and not are_alike([found[0], batch])):
                yield found
                found = []
            found.append(batch)
        if found:
            yield found

    def round_of(self, model: Any, step: Callable[[Any], Any]) -> Callable[..., None]:
        """A function of a replica's batches: its steps, and the meeting.

        A step reads and writes the model's variables.
        """

        def round_(*batches: Any) -> None:
            frame = current_frame()
            assert frame is not None and frame.replica is not None
            with entered(replace(frame, sum_gradients=_own)):
                _take(step, batches)
            _meet(model, frame.replica.group)

        return round_


def local_steps(every: int, options: CommunicationOptions) -> LocalSteps | None:
    """What a strategy's arguments say; None if every gradient is combined."""
    wanted = LocalSteps(every)
    if every == 1:
        return None
    if options.compression is not None:
        raise UsageError(
            f"Cannot use compression={options.compression!r} with sync_every={every}: no gradient "
            "travels between meetings. Leave one of them out."
        )
    return wanted


def _own(
    optimizer: Any, variables: Sequence[Any], gradients: Sequence[Any], group: SyncGroup
) -> list[Any]:
    """Gradients as a replica applies them alone: they were made to be summed over the group."""
    del optimizer, variables
    return [gradient * group.size for gradient in gradients]


def _meet(model: Any, group: SyncGroup) -> None:
    """Let all that replicas have come to alone be the mean of it, on all of them."""
    floats, others = _apart(model)
    # Of a replica without rows, statistics are NaN and must not spread.
    shares = [
        value * group.share if group.share else jnp.zeros_like(value)
        for value in map(_compat.read, floats)
    ]
    # Numbers of steps, and seeds: one replica's, which may have left out what was not finite.
    firsts = [
        jnp.where(group.replica_id() == 0, value, jnp.zeros_like(value))
        for value in map(_compat.read, others)
    ]
    _compat.write_all(floats, group.all_reduce(ReduceOp.SUM, shares))
    _compat.write_all(others, group.all_reduce(ReduceOp.SUM, firsts))


def _apart(model: Any) -> tuple[list[Any], list[Any]]:
    """What may differ after steps alone: variables of floating-point numbers, and others.

    Not metrics: they are sums over all rows, and settle as such.
    """
    metrics = set(map(id, model.metrics_variables))
    both = {id(v): v for v in (*model.variables, *model.optimizer.variables)}
    own = [variable for key, variable in both.items() if key not in metrics]
    floats = [variable for variable in own if "float" in variable.dtype]
    return floats, [variable for variable in own if "float" not in variable.dtype]


def _take(step: Callable[[Any], Any], batches: Sequence[Any]) -> None:
    """One step for each batch, as a loop of the program."""
    written: dict[int, Any] = {}

    def updates(values: Sequence[Any], batch: Any) -> list[tuple[Any, Any]]:
        with CaptureScope() as scope:
            scope.lend(zip(written.values(), values, strict=True))
            step(batch)
        return scope.updates()

    def find(batch: Any) -> list[Any]:
        found = updates([], batch)
        written.update((id(variable), variable) for variable, _ in found)
        return [new for _, new in found]

    jax.eval_shape(find, batches[0])

    def body(values: list[Any], batch: Any) -> tuple[list[Any], None]:
        news = {id(variable): new for variable, new in updates(values, batch)}
        return [
            jnp.asarray(news.get(key, old), old.dtype)
            for key, old in zip(written, values, strict=True)
        ], None

    variables = list(written.values())
    start = [_compat.read(variable) for variable in variables]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    ends, _ = jax.lax.scan(body, start, stacked)
    _compat.write_all(variables, ends)
