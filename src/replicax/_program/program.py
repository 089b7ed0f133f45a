"""Compiled steps: which calls share one, and the one executor of them all.

A call's arguments are a `Signature`, by which a `ProgramCache` finds the step. A `Program` reads
its variables, computes, and writes them. It takes over the memory of those that it writes
("donation"). An array that came from elsewhere may share its memory with one that the user still
holds: `device_put` onto more devices keeps the buffer of the first. So whatever no step made is
copied before.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import operator
import sys
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import jax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from replicax._core import events
from replicax._core.events import COMPILE, COMPUTE, timed
from replicax._core.host_calls import PythonCalls
from replicax._core.interrupts import uninterrupted
from replicax._core.machine.startup import forked, in_fork
from replicax._core.placement import copied, move_some
from replicax._core.topology import may_deadlock
from replicax._core.tracing import around, is_staged, is_transformed, outside_of_all
from replicax._core.values import Mirrored, PerReplica, is_distributed
from replicax._keras import _compat
from replicax._program.capture import ARRAYS, Static
from replicax._program.compiling import steady
from replicax._program.explain import (
    blame,
    memory_needs,
    raise_explained,
    tell_lost,
    tracer_for_variable,
    variable_in_jax,
)
from replicax._program.feeding import is_iterator, static_key, structure_of
from replicax._program.identity import together
from replicax._program.jaxpr import has_host_callbacks

if TYPE_CHECKING:
    from replicax._program.capture import Captured
    from replicax._program.identity import StateWatch

logger = logging.getLogger("replicax")

T = TypeVar("T")
MANY_TRACES = 8
_TRACED = (PerReplica, Mirrored, *ARRAYS)


@final
@dataclass(frozen=True)
class Signature:
    """The arguments of a call, split into arrays and the rest."""

    key: Hashable  # equal for calls that can share a program
    arrays: list[Any]  # to be traced, in order; also `PerReplica` values
    leaves: tuple[Static | None, ...]  # `Static`, or None for the next array
    tree: Any  # the structure of `(args, kwargs)`

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: dict[str, Any], *, expand: bool = False) -> Signature:
        """Read the arguments of a call.

        A function of global values lets distributed values `expand` to their arrays; a replica
        function gets them whole.
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
                key.append(static_key(leaf))
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
        return rebuilt(self.tree, self.leaves, arrays)


def rebuilt(tree: Any, leaves: Sequence[Static | None], arrays: Iterable[Any]) -> Any:
    """A nest of these leaves; None stands for the next array."""
    rest = iter(arrays)
    return tree.unflatten([next(rest) if leaf is None else leaf.value for leaf in leaves])


def _array_key(value: Any) -> Hashable:
    if isinstance(value, PerReplica):
        if value.parts is None:
            return (True, _array_key(value.stacked))
        return (False, *map(_array_key, value.parts))
    return (value.shape, value.dtype, getattr(value, "weak_type", False))


def _callable_key(fn: Callable[..., Any]) -> Hashable:
    try:
        hash(fn)
    except TypeError:
        return (type(fn), id(fn))
    return fn


@final
class BySignature(Generic[T]):
    """What is known of the calls of each signature, those used longest ago dropped first."""

    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: OrderedDict[Hashable, tuple[T, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def of(self, key: Hashable) -> T | None:
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key][0]

    def note(self, key: Hashable, value: T, *, keep: Any) -> None:
        """Remember this of the calls of a signature.

        `keep` keeps alive the objects that `key` names by `id`, so that no other gets it.
        """
        self._known[key] = (value, keep)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


@final
class ProgramCache:
    """Programs by function and signature."""

    def __init__(self, limit: int = 64) -> None:
        self._programs: BySignature[Any] = BySignature(limit)
        self._alike: dict[Hashable, Hashable] = {}
        self._traces: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def get(
        self, fn: Callable[..., Any], key: Hashable, build: Callable[[], Any], *, keep: Any = None
    ) -> Any:
        """The program of `fn` for `key`, built on first use; for `keep` see `BySignature`."""
        full_key = (_callable_key(fn), key)
        program = self._programs.of(full_key)
        kept: list[Any] = []
        alike = None
        if program is None and around().is_host_loop and isinstance(fn, FunctionType):
            # A step that each call of a host loop defines is a new function, but not another one.
            alike = (structure_of(fn, kept), key)
            full_key = self._alike.get(alike, full_key)
            program = self._programs.of(full_key)
        if program is None:
            program = timed(COMPILE, build)
            self._programs.note(full_key, program, keep=(fn, keep, kept))
            if alike is not None:
                self._alike[alike] = full_key
            self._alike = {a: full for a, full in self._alike.items() if full in self._programs}
            self._count(fn)
        return program

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


@final
class Queue:
    """The step in flight on a set of devices that could dead-lock, whoever started it.

    XLA:CPU runs the devices of a process on one thread pool. If several steps are in flight,
    threads waiting in one step's all-reduce can leave none for the other devices. So a step waits
    for the one before it, be that of another function, of another model or of another strategy.
    """

    def __init__(self) -> None:
        self._token: Any = None
        #: The queues of all sets that share a device with this one; none if nothing can dead-lock.
        self.near: tuple[Queue, ...] = ()

    def wait(self) -> None:
        """Wait until no step is in flight on any of the devices.

        Raises the error of a step that has failed, once.
        """
        for queue in self.near:
            token, queue._token = queue._token, None
            if token is not None:
                token.block_until_ready()

    def put(self, token: Any) -> None:
        """Note that a step was started.

        `token` is an array that it computes and that no later one takes over; None for none.
        """
        if self.near:
            self._token = token


_free = Queue()
_queues: dict[frozenset[Any], Queue] = {}
_lock = threading.Lock()


def queue_of(devices: Collection[Any]) -> Queue:
    """The queue of all steps on these devices: the same for whoever asks."""
    if not may_deadlock(devices):
        return _free
    key = frozenset(devices)
    with _lock:
        if key not in _queues:
            near = [queue for others, queue in _queues.items() if others & key]
            made = _queues[key] = Queue()
            made.near = (made, *near)
            for queue in near:
                queue.near = (*queue.near, made)
        return _queues[key]


@final
class Program:
    """A compiled step: it reads its variables, computes, and gives them their new values.

    `compiled` is from `(written values, other values, arrays)` to `(outputs, new values, token)`;
    the token is an array that is there when all is computed. All workers compute a step that
    `is_common` together. Its `identity` is a number of what it computes, the same on all of them.
    """

    def __init__(
        self,
        state: ProgramState,
        compiled: Any,
        devices: Collection[Any],
        *,
        is_common: bool,
        identity: int = 0,
        watch: StateWatch | None = None,
    ) -> None:
        self.state, self.compiled = state, compiled
        self._queue, self._sharding = queue_of(devices), None
        self._is_common, self._identity, self._watch = is_common, identity, watch
        # What calls a program that calls Python, which may raise.
        calls = () if state.calls is None else (state.calls.carry_out,)
        self._around = (together, *calls) if calls and is_common else calls
        self._steady = steady(compiled)
        self._is_new = True

    def __call__(self, doing: str, arrays: Any) -> Any:
        """Compute a step from a nest of arrays; `doing` names it in messages."""
        if forked:
            raise in_fork()
        is_traced = get_opaque_trace_state() != outside_of_all()
        if is_traced and is_staged():
            return self.inline(arrays)
        if self._is_common or events.listeners:
            events.begin_step(doing, common=self._is_common, identity=self._identity)
        written, others = [], []
        try:
            self._queue.wait()
            if self._watch is not None:
                self._watch.step(self.state.named)
            compiled = self.compiled if is_traced or self._is_new else self._steady
            # A signal between donation and write would lose the values. A program that calls
            # Python keeps them, and a worker may wait long for that of another.
            with contextlib.nullcontext() if self._around else uninterrupted:
                written, others = self.state.taken()
                has_tracers = is_traced and is_transformed()
                if has_tracers:  # then new values may be none, and the old ones stay
                    written = list(map(copied, written))
                if events.clock is None and not self._around:
                    outputs, news, token = compiled(written, others, arrays)
                else:
                    call = (*self._around, compiled, written, others, arrays)
                    outputs, news, token = timed(COMPUTE, *call)
                if has_tracers:
                    for variable, new in zip(self.state.written, news, strict=True):
                        if isinstance(new, Tracer):
                            raise tracer_for_variable(variable.path)
                with uninterrupted:
                    self.state.give(news)
                if token.sharding is not self._sharding:  # arrays of equal shapes may be elsewhere
                    self._sharding = token.sharding
                    self._queue = queue_of(token.sharding.device_set)
                self._queue.put(token)
                self._is_new = self._is_new and is_traced
                if self._is_common:
                    events.dispatched(token.is_ready)
        except Exception as error:
            blame(error)
            tell_lost(error, self.state.written, map(_compat.stored, self.state.written))
            raise_explained(error, lambda: memory_needs(self._steady, (written, others), arrays))
        return outputs

    def inline(self, arrays: Any) -> Any:
        """Compute it as a part of the program around it, which lends, keeps and waits.

        A program of JAX alone knows no variables, so that is an error if the step has some.
        """
        variables = [*self.state.written, *self.state.others]
        if variables and _compat.get_stateless_scope() is None:
            raise variable_in_jax(variables[0].path)
        outputs, news, _ = self.compiled(*self.state.values(), arrays)
        _compat.write_all(self.state.written, news)
        return outputs


@final
class ProgramState:
    """The variables that a program reads and writes.

    What each call needs is computed once: a step of a few milliseconds may have hundreds of them.
    A program that `donates` reuses the memory of the values at the positions `written`, unless it
    has `host_callbacks`: these may raise, and then variables must keep their values. Each call
    waits for such a program, and raises its error. A plan passes the `store` of its variables.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        written: Sequence[int],
        *,
        donates: bool,
        host_callbacks: bool = False,
        store: Any = None,
    ) -> None:
        is_written = set(written)
        self._order = [i in is_written for i in range(len(variables))]
        self.written = [variables[i] for i in written]
        self.others = [v for i, v in enumerate(variables) if i not in is_written]
        self._keys = list(map(id, self.written))
        owners = [store or _compat.owner(v) for v in (*self.written, *self.others)]
        stores = [one for one in owners if one is not None and one.home is not None]
        self._store = stores[0] if stores else None
        self._is_lent = [one is not None and one is self._store for one in owners]
        self.calls = PythonCalls() if host_callbacks else None
        free = not host_callbacks and all(one is None or one.is_resident for one in owners)
        if self._store is not None and all(self._is_lent[: len(self.written)]):
            free = self._store.lends_copies  # nobody else has those
        #: Whether a call uses up the values of those that are written.
        self.donates = donates and free and len(self.written) > 0

    @classmethod
    def of(cls, captured: Captured, *, donates: bool, store: Any = None) -> ProgramState:
        calls = has_host_callbacks(captured.jaxpr)
        how = {"donates": donates, "host_callbacks": calls, "store": store}
        return cls(captured.variables, captured.written, **how)

    def in_order(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Values of the variables, as the program takes them."""
        mine, rest = iter(written), iter(others)
        return [next(mine if is_written else rest) for is_written in self._order]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of the variables that are written, and those of the others."""
        if _compat.get_stateless_scope() is None and not around().hearers:
            # Each step takes this way: no loop in Python unless something is missing.
            written = list(map(_compat.stored, self.written))
            others = list(map(_compat.stored, self.others))
            if not any(map(operator.is_, itertools.chain(written, others), itertools.repeat(None))):
                return written, others
        return _compat.read_all(self.written), _compat.read_all(self.others)

    def lent(self) -> tuple[list[Any], list[Any]]:
        """The values of `values()`, moved to where the program computes."""
        written, others = self.values()
        if self._store is None:
            return written, others
        lent = move_some(self._store.lend, [*written, *others], self._is_lent)
        return lent[: len(written)], lent[len(written) :]

    def bound(self) -> tuple[list[Any], list[Any]]:
        """The values of `lent()`; those that a call will use up are bound to their devices."""
        written, others = self.lent()
        if self.donates:
            written = [jax.device_put(value, value.sharding) for value in written]
        return written, others

    def taken(self) -> tuple[list[Any], list[Any]]:
        """The values of `lent()`, for a call that may use up the written ones."""
        written, others = self.lent()
        if self.donates and self._store is None:
            written = _donatable(self._keys, written)
        return written, others

    def named(self) -> list[tuple[str, Any]]:
        variables = [*self.written, *self.others]
        values = _compat.read_all(variables)
        return [(v.path, value) for v, value in zip(variables, values, strict=True)]

    def give(self, news: list[Any]) -> None:
        """Give the variables what a call on devices has made of them."""
        if self._store is not None:
            news = move_some(self._store.keep, news, self._is_lent)
        elif self.donates:
            _note_made(self._keys, news)
        if _compat.get_stateless_scope() is None:
            deque(map(setattr, self.written, itertools.repeat(_compat.VALUE), news), maxlen=0)
        else:
            _compat.write_all(self.written, news)


_made: dict[int, Callable[[], Any]] = {}


def _note_made(variables: Sequence[int], values: Iterable[Any]) -> None:
    """Remember that a step made these values of these variables (by `id`), as long as they live."""
    callbacks = map(_forgetting, variables)
    _made.update(zip(variables, map(weakref.ref, values, callbacks), strict=True))


@functools.lru_cache(maxsize=4096)
def _forgetting(variable: int) -> Callable[[Any], None]:
    return functools.partial(_forget, variable)


def _forget(variable: int, made: Callable[[], Any]) -> None:
    if _made.get(variable) is made:
        _made.pop(variable, None)


def _donatable(variables: Sequence[int], values: list[Any]) -> list[Any]:
    """The same list, with a copy in place of each value that is not the steps' own.

    `variables` are theirs, by `id`. The list must be the only other holder beside the variable: a
    count of references tells whether the user holds one too (`old = v.value`).
    """
    # No loop in Python, as above, unless something is to be copied.
    made = [made() for made in map(_made.get, variables, itertools.repeat(_gone))]
    is_own = list(map(operator.is_, made, values))
    del made
    holders = list(map(sys.getrefcount, values))
    if all(is_own) and max(holders, default=0) <= _SOLE_OWNER:
        return values
    for i in range(len(values)):
        if not is_own[i] or holders[i] > _SOLE_OWNER:
            values[i] = copied(values[i])
    return values


def _gone() -> None:
    """Stands for an array that no step made."""


# References to an array that only its variable holds: those to an object that a list alone holds,
# counted in the same way, and the variable's.
_SOLE_OWNER = max(map(sys.getrefcount, [object()])) + 1
