"""The signature of a call: what is traced, what is part of the program, and the cache of both."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, final

import jax

from replicax._core.events import COMPILE, timed
from replicax._core.tracing import is_host_loop
from replicax._core.values import Mirrored, PerReplica, is_distributed
from replicax._program.capture import ARRAYS, Static
from replicax._program.feeding import is_iterator

logger = logging.getLogger("replicax")

MANY_TRACES = 8
_TRACED = (PerReplica, Mirrored, *ARRAYS)


@final
@dataclass(frozen=True)
class Signature:
    """The arguments of a call, split into arrays and the rest.

    Args:
        key: Equal for calls that can share a program.
        arrays: Arrays and `PerReplica` values, to be traced, in order.
        leaves: One entry per leaf: `Static`, or None for the next array.
        tree: The structure of `(args, kwargs)`.
    """

    key: Hashable
    arrays: list[Any]
    leaves: tuple[Static | None, ...]
    tree: Any

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: dict[str, Any], *, expand: bool = False) -> Signature:
        """Read the arguments of a call.

        Args:
            args: Positional arguments.
            kwargs: Keyword arguments.
            expand: Whether distributed values are taken apart into their arrays (for a
                function of global values) or kept whole (for a replica function).
        """
        is_leaf = None if expand else is_distributed
        leaves, tree = jax.tree.flatten((tuple(args), kwargs), is_leaf=is_leaf)
        arrays, kinds, key = [], [], [tree]
        for leaf in leaves:
            if isinstance(leaf, _TRACED):
                value = leaf.value if isinstance(leaf, Mirrored) else leaf
                arrays.append(value)
                kinds.append(None)
                key.append(_array_key(value))
            else:
                kinds.append(Static(leaf))
                key.append(_static_key(leaf))
        return cls(tuple(key), arrays, tuple(kinds), tree)

    @property
    def kept(self) -> list[Any]:
        """What `key` names by `id`; of an iterator only its data set, and nothing read ahead."""
        values = [leaf.value for leaf in self.leaves if leaf is not None]
        return [value.dataset if is_iterator(value) else value for value in values]

    def without_arrays(self) -> Signature:
        """The same, for a program to keep: without this call's arrays and their memory."""
        return replace(self, arrays=[])

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments again, with `arrays` in place of the originals."""
        rest = iter(arrays)
        leaves = [next(rest) if leaf is None else leaf.value for leaf in self.leaves]
        return self.tree.unflatten(leaves)


def _array_key(value: Any) -> Hashable:
    if isinstance(value, PerReplica):
        if value.parts is None:
            return (True, _array_key(value.stacked))
        return (False, *map(_array_key, value.parts))
    return (value.shape, value.dtype, getattr(value, "weak_type", False))


def _static_key(leaf: Any) -> Hashable:
    if is_iterator(leaf):  # that of the next pass is another one, and all else is equal
        return (type(leaf), id(leaf.dataset))
    if isinstance(leaf, int | str | bytes | type(None)):
        return (type(leaf), leaf)
    if isinstance(leaf, float | complex):
        return (type(leaf), repr(leaf))  # 0.0 and -0.0 are equal, but not the same number
    if hasattr(type(leaf), "__tf_tracing_type__"):
        return (type(leaf), leaf.__tf_tracing_type__(None))
    # By identity: models, variables, functions. The cache keeps the leaf alive.
    return (type(leaf), id(leaf))


def _callable_key(fn: Callable[..., Any]) -> Hashable:
    try:
        hash(fn)
    except TypeError:
        return (type(fn), id(fn))
    return fn


def _structure(fn: Any, kept: list[Any], around: tuple[int, ...] = ()) -> Hashable:
    """What a function is made of: equal for two that a `def` in a loop makes of the same things.

    Args:
        fn: A function, or what a function holds.
        kept: Gets what the structure names by `id`.
        around: The functions that hold this one.
    """
    if not isinstance(fn, FunctionType):
        kept.append(fn)
        return _static_key(fn)
    if id(fn) in around:
        return ("itself", around.index(id(fn)))
    around = (*around, id(fn))
    held = [*(cell.cell_contents for cell in fn.__closure__ or () if _is_filled(cell))]
    held += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    kept.append(fn.__globals__)
    parts = tuple(_structure(value, kept, around) for value in held)
    return (fn.__code__, id(fn.__globals__), tuple(fn.__kwdefaults__ or ()), parts)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


@final
class ProgramCache:
    """Programs by function and signature, the least recently used dropped first.

    Args:
        limit: How many programs are kept.
    """

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._programs: OrderedDict[Hashable, Any] = OrderedDict()
        self._alike: dict[Hashable, Hashable] = {}
        self._traces: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def get(
        self, fn: Callable[..., Any], key: Hashable, build: Callable[[], Any], *, keep: Any = None
    ) -> Any:
        """The program of `fn` for `key`, built on first use.

        Args:
            fn: The function.
            key: What distinguishes its programs.
            build: Makes the program.
            keep: Objects that `key` names by `id`: kept as long as the program, so that no
                later object gets their `id`.
        """
        full_key = (_callable_key(fn), key)
        entry = self._programs.get(full_key)
        kept: list[Any] = []
        alike = None
        if entry is None and is_host_loop() and isinstance(fn, FunctionType):
            # A step that each call of a host loop defines is a new function, but not another one.
            alike = (_structure(fn, kept), key)
            full_key = self._alike.get(alike, full_key)
            entry = self._programs.get(full_key)
        if entry is None:
            entry = self._programs[full_key] = (timed(COMPILE, build), fn, keep, kept)
            if alike is not None:
                self._alike[alike] = full_key
            self._count(fn)
            if len(self._programs) > self._limit:
                gone, _ = self._programs.popitem(last=False)
                self._alike = {a: full for a, full in self._alike.items() if full != gone}
        else:
            self._programs.move_to_end(full_key)
        return entry[0]

    def _count(self, fn: Callable[..., Any]) -> None:
        # By code: a function that is defined anew in each round of a loop is one function here.
        code = getattr(fn, "__code__", _callable_key(fn))
        self._traces[code] = self._traces.get(code, 0) + 1
        if self._traces[code] == MANY_TRACES:
            logger.warning(
                "%s was compiled %d times. Each new shape, Python number or function object "
                "compiles again: pass changing numbers as arrays, keep batch shapes equal, and "
                "define the function once, outside the loop.",
                getattr(fn, "__qualname__", repr(fn)),
                MANY_TRACES,
            )
