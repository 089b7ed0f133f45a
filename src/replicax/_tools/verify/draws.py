"""Random numbers of replicas as rows of one device's draw.

In `run` each replica draws from its own stream, so a program with dropout does not give one
device's numbers. During a verification, a draw with as many rows as the replica's share of the
batch gives that share of one device's draw. A seed written in the program is left alone: every
replica draws the same from it, which is a fault to be found."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax._core.context import current_frame, entered
from replicax._core.values import PerReplica, is_distributed
from replicax._keras import _compat
from replicax._mesh.engine import Engine
from replicax._tools.script import replaced

if TYPE_CHECKING:
    from replicax._tools.verify.record import Run


_OF_SHAPE = ("normal", "uniform", "truncated_normal", "randint")


class Draws:
    """Aligns the replicas' draws, and records those that cannot be aligned."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._rows: tuple[int, ...] = ()  # of each replica, in the `run` that is under way

    @contextlib.contextmanager
    def aligned(self) -> Generator[None, None, None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(Engine, "run", self._with_rows))
            stack.enter_context(replaced(_compat.SeedGenerator, "next", self._noted))
            for name in _OF_SHAPE:
                wrapper = functools.partial(self._draw, name, _of_shape)
                stack.enter_context(replaced(_compat.jax_random, name, wrapper))
            wrapper = functools.partial(self._draw, "dropout", _of_dropout)
            stack.enter_context(replaced(_compat.jax_random, "dropout", wrapper))
            yield

    def _with_rows(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """`Engine.run`, during which the rows of each replica are known."""

        def run(engine: Any, strategy: Any, fn: Any, args: Any, kwargs: Any, *rest: Any) -> Any:
            leaves = jax.tree.leaves((args, kwargs), is_leaf=is_distributed)
            divided = [leaf for leaf in leaves if isinstance(leaf, PerReplica)]
            before = self._rows
            self._rows = next((found for found in map(_sizes, divided) if found), ())
            try:
                return original(engine, strategy, fn, args, kwargs, *rest)
            finally:
                self._rows = before

        return run

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def next_seed(generator: Any, *args: Any, **kwargs: Any) -> Any:
            self._run.own_draws |= _replica() is not None
            return original(generator, *args, **kwargs)

        return next_seed

    def _draw(
        self, name: str, draw: Callable[..., Any], original: Callable[..., Any]
    ) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def drawn(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs)
            seed, replica = given.arguments.get("seed"), _replica()
            shape = _shape(given.arguments)
            share = _share(shape, self._rows) if replica and shape else None
            if replica is None or share is None or not _is_plain(given.arguments):
                return original(*args, **kwargs)
            if not isinstance(seed, _compat.SeedGenerator):
                if not isinstance(seed, Tracer):  # a computed one may differ between replicas
                    self._run.shared_draws.add(name)
                return original(*args, **kwargs)
            with entered(None):  # the key of one device's draw
                given.arguments["seed"] = seed.next()
            return draw(original, given.arguments, share, replica.replica_id_in_sync_group)

        return drawn


def _sizes(value: PerReplica) -> tuple[int, ...]:
    shapes = [part.shape for part in value.parts] if value.parts else [value.stacked.shape[1:]]
    if not all(shapes):
        return ()
    sizes = tuple(shape[0] for shape in shapes)
    return sizes if value.parts else sizes * value.num_replicas


def _replica() -> Any:
    frame = current_frame()
    replica = frame.replica if frame else None
    return replica if replica is not None and replica.num_replicas_in_sync > 1 else None


def _is_plain(arguments: dict[str, Any]) -> bool:
    """Whether a draw has one distribution for all rows, and draws at all."""
    limits = [value for name, value in arguments.items() if name not in ("inputs", "seed")]
    return not any(getattr(limit, "ndim", 0) for limit in limits) and (
        0 < arguments.get("rate", 0.5) < 1
    )


def _shape(arguments: dict[str, Any]) -> tuple[int, ...]:
    """The shape of a draw, without the axes along which a mask is constant."""
    if "inputs" not in arguments:
        return tuple(arguments["shape"])
    inputs = arguments["inputs"].shape
    noise = arguments.get("noise_shape") or inputs
    return tuple(o if n is None else n for n, o in zip(noise, inputs, strict=True))


def _share(shape: Sequence[int], sizes: Sequence[int]) -> tuple[int, tuple[int, ...]] | None:
    """The rows of one device's draw, and the first row of each replica.

    A row of the batch may be several rows of the draw.
    """
    fitting = [s for s in sorted(set(sizes), reverse=True) if s and shape[0] % s == 0]
    if not fitting or not shape[0]:
        return None
    each = shape[0] // fitting[0]
    starts = [each * sum(sizes[:replica]) for replica in range(len(sizes))]
    return each * sum(sizes), tuple(starts)


def _of_shape(original: Any, arguments: dict[str, Any], share: Any, replica: Any) -> Any:
    total, starts = share
    shape = tuple(arguments["shape"])
    whole = original(**{**arguments, "shape": (total, *shape[1:])})
    start = jnp.asarray(starts)[replica]
    return jax.lax.dynamic_slice_in_dim(whole, start, shape[0])


def _of_dropout(original: Any, arguments: dict[str, Any], share: Any, replica: Any) -> Any:
    inputs, shape = arguments["inputs"], _shape(arguments)
    ones = jnp.ones((share[0], *shape[1:]), inputs.dtype)
    start = jnp.asarray(share[1])[replica]
    whole = original(**{**arguments, "inputs": ones, "noise_shape": None})
    mask = jax.lax.dynamic_slice_in_dim(whole, start, shape[0])
    kept = jnp.broadcast_to(mask != 0, inputs.shape)
    return jnp.where(kept, inputs / (1.0 - arguments["rate"]), jnp.zeros_like(inputs))
