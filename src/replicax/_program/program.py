"""`Program`, the executor of all compiled steps, and the cache that finds one for a call.

The key of a call is its `Signature`. A `Program` reads its variables, runs the executable, and
writes the variables. It donates the memory of those that it writes. An array that no step made may
share its memory with one that the user holds: `device_put` onto more devices keeps the first
buffer. Such arrays are copied before they are donated.
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
from replicax._core.host_calls import HostCallbacks
from replicax._core.interrupts import uninterrupted
from replicax._core.machine.startup import fork_error, forked
from replicax._core.placement import copy_array, move_some
from replicax._core.topology import may_deadlock
from replicax._core.tracing import around, eager_state, is_staged, is_transformed
from replicax._core.values import Mirrored, PerReplica, is_distributed
from replicax._keras import _compat
from replicax._program.agreement import raise_on_all
from replicax._program.capture import ARRAYS, Static
from replicax._program.compiling import compiled_call
from replicax._program.explain import (
    end_if_worker_failed,
    memory_needs,
    note_lost_variables,
    raise_explained,
    tracer_for_variable,
    variable_in_jax,
)
from replicax._program.iterator_inputs import is_iterator, static_key, structure_of
from replicax._program.jaxpr import has_host_callbacks

if TYPE_CHECKING:
    from replicax._program.agreement import StateCheck
    from replicax._program.capture import Captured

logger = logging.getLogger("replicax")

T = TypeVar("T")
MANY_TRACES = 8
_TRACED = (PerReplica, Mirrored, *ARRAYS)


@final
@dataclass(frozen=True)
class Signature:
    """The arguments of a call, split into arrays and the rest."""

    key: Hashable  # the cache key: equal for calls that can share a program
    arrays: list[Any]  # to be traced, in order; also `PerReplica` values
    leaves: tuple[Static | None, ...]  # `Static`, or None for the next array
    tree: Any  # the structure of `(args, kwargs)`

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: dict[str, Any], *, expand: bool = False) -> Signature:
        """Read the arguments of a call.

        `expand`: flatten distributed values to their arrays; a replica function gets them whole.
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
        """The objects whose `id`s are in `key`; an iterator's data set, not the iterator."""
        values = [leaf.value for leaf in self.leaves if leaf is not None]
        return [value.dataset if is_iterator(value) else value for value in values]

    def without_arrays(self) -> Signature:
        """A copy for a program to keep, which does not hold the arrays of the call."""
        return replace(self, arrays=[])

    def rebuild(self, arrays: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other arrays."""
        return rebuilt(self.tree, self.leaves, arrays)


def rebuilt(tree: Any, leaves: Sequence[Static | None], arrays: Iterable[Any]) -> Any:
    """Unflatten leaves, where None stands for the next array."""
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
class LRUCache(Generic[T]):
    def __init__(self, limit: int = 64) -> None:
        self._limit = limit
        self._known: OrderedDict[Hashable, tuple[T, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._known

    def get(self, key: Hashable) -> T | None:
        if key not in self._known:
            return None
        self._known.move_to_end(key)
        return self._known[key][0]

    def put(self, key: Hashable, value: T, *, keep: Any) -> None:
        """Add an entry. `keep` holds the objects whose `id`s are in `key`: ids may be reused."""
        self._known[key] = (value, keep)
        if len(self._known) > self._limit:
            self._known.popitem(last=False)


@final
class ProgramCache:
    """Programs by function and signature."""

    def __init__(self, limit: int = 64) -> None:
        self._programs: LRUCache[Any] = LRUCache(limit)
        self._alike: dict[Hashable, Hashable] = {}
        self._traces: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._programs)

    def get(
        self, fn: Callable[..., Any], key: Hashable, build: Callable[[], Any], *, keep: Any = None
    ) -> Any:
        """The program of `fn` for `key`, built on first use; for `keep` see `LRUCache`."""
        full_key = (_callable_key(fn), key)
        program = self._programs.get(full_key)
        kept: list[Any] = []
        alike = None
        if program is None and around().runs_in_python and isinstance(fn, FunctionType):
            # A loop in plain Python may define an equal step function in each round.
            alike = (structure_of(fn, kept), key)
            full_key = self._alike.get(alike, full_key)
            program = self._programs.get(full_key)
        if program is None:
            program = timed(COMPILE, build)
            self._programs.put(full_key, program, keep=(fn, keep, kept))
            if alike is not None:
                self._alike[alike] = full_key
            self._alike = {a: full for a, full in self._alike.items() if full in self._programs}
            self._count(fn)
        return program

    def _count(self, fn: Callable[..., Any]) -> None:
        # By code object: a function that is defined in each round of a loop counts as one.
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
class InFlight:
    """The step in flight on a set of devices on which overlapping steps can deadlock.

    XLA:CPU runs the devices of a process on one thread pool. If several steps are in flight,
    threads that wait in one step's all-reduce can leave none for the other devices. So each step
    waits for the one before it, also if another function, model or strategy started that.
    """

    def __init__(self) -> None:
        self._token: Any = None
        #: The objects of all sets that share a device with this one; empty if nothing can deadlock.
        self.near: tuple[InFlight, ...] = ()

    def wait(self) -> None:
        """Wait until no step is in flight on any of the devices; raises its error, once."""
        for queue in self.near:
            token, queue._token = queue._token, None
            if token is not None:
                token.block_until_ready()

    def put(self, token: Any) -> None:
        """Note a started step. `token` is an output that no later step donates, or None."""
        if self.near:
            self._token = token


_never_deadlocks = InFlight()
_by_devices: dict[frozenset[Any], InFlight] = {}
_lock = threading.Lock()


def in_flight_on(devices: Collection[Any]) -> InFlight:
    """The `InFlight` of these devices, one per set of devices in a process."""
    if not may_deadlock(devices):
        return _never_deadlocks
    key = frozenset(devices)
    with _lock:
        if key not in _by_devices:
            near = [queue for others, queue in _by_devices.items() if others & key]
            made = _by_devices[key] = InFlight()
            made.near = (made, *near)
            for queue in near:
                queue.near = (*queue.near, made)
        return _by_devices[key]


@final
class Program:
    """A compiled step: it reads its variables, runs the executable, and writes the variables.

    `compiled` maps `(written values, other values, arrays)` to `(outputs, new values, token)`; the
    token is ready when everything is computed. All workers run a step that `is_common` together;
    `identity` is a checksum of its jaxpr, equal on all of them.
    """

    def __init__(
        self,
        state: ProgramState,
        compiled: Any,
        devices: Collection[Any],
        *,
        is_common: bool,
        identity: int = 0,
        state_check: StateCheck | None = None,
    ) -> None:
        self.state = state
        self.compiled = compiled
        self._queue, self._sharding = in_flight_on(devices), None
        self._is_common = is_common
        self._identity = identity
        self._state_check = state_check
        # The callers around the executable if it has host callbacks, which may raise.
        calls = () if state.calls is None else (state.calls.run,)
        self._around = (raise_on_all, *calls) if calls and is_common else calls
        self._call = compiled_call(compiled)
        self._is_new = True

    def __call__(self, doing: str, arrays: Any) -> Any:
        """Run the step on a nest of arrays; `doing` names it in messages."""
        if forked:
            raise fork_error()
        is_traced = get_opaque_trace_state() != eager_state()
        if is_traced and is_staged():
            return self.inline(arrays)
        if self._is_common or events.listeners:
            events.begin_step(doing, common=self._is_common, identity=self._identity)
        written, others = [], []
        try:
            self._queue.wait()
            if self._state_check is not None:
                self._state_check.step(self.state.named_values)
            compiled = self.compiled if is_traced or self._is_new else self._call
            # A signal between donation and write would lose the values. A program with host
            # callbacks donates nothing, and its worker may wait long for the callbacks of others.
            with contextlib.nullcontext() if self._around else uninterrupted:
                written, others = self.state.read_for_donation()
                has_tracers = is_traced and is_transformed()
                if has_tracers:  # the new values may be tracers; then the old ones stay
                    written = list(map(copy_array, written))
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
                    self.state.write(news)
                if token.sharding is not self._sharding:  # equal shapes may be on other devices
                    self._sharding = token.sharding
                    self._queue = in_flight_on(token.sharding.device_set)
                self._queue.put(token)
                self._is_new = self._is_new and is_traced
                if self._is_common:
                    events.dispatched(token.is_ready)
        except Exception as error:
            end_if_worker_failed(error)
            note_lost_variables(error, self.state.written, map(_compat.stored, self.state.written))
            raise_explained(error, lambda: memory_needs(self._call, (written, others), arrays))
        return outputs

    def inline(self, arrays: Any) -> Any:
        """Inline the step into the program that is being traced.

        An error in a program of plain JAX if the step has variables, which JAX does not know.
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
        self._is_fetched = [one is not None and one is self._store for one in owners]
        self.calls = HostCallbacks() if host_callbacks else None
        free = not host_callbacks and all(one is None or one.is_resident for one in owners)
        if self._store is not None and all(self._is_fetched[: len(self.written)]):
            free = self._store.fetches_copies  # which nobody else holds
        #: Whether a call donates the values of the written variables.
        self.donates = donates and free and len(self.written) > 0

    @classmethod
    def of(cls, captured: Captured, *, donates: bool, store: Any = None) -> ProgramState:
        calls = has_host_callbacks(captured.jaxpr)
        how = {"donates": donates, "host_callbacks": calls, "store": store}
        return cls(captured.variables, captured.written, **how)

    def in_order(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """The values of the variables in the order of the captured program."""
        mine, rest = iter(written), iter(others)
        return [next(mine if is_written else rest) for is_written in self._order]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of the written variables, and of the others."""
        if _compat.get_stateless_scope() is None and not around().read_observers:
            # The path of every step: no Python loop unless a value is missing.
            written = list(map(_compat.stored, self.written))
            others = list(map(_compat.stored, self.others))
            if not any(map(operator.is_, itertools.chain(written, others), itertools.repeat(None))):
                return written, others
        return _compat.read_all(self.written), _compat.read_all(self.others)

    def fetch(self) -> tuple[list[Any], list[Any]]:
        """The result of `values()` on the devices of the program."""
        written, others = self.values()
        if self._store is None:
            return written, others
        fetch = move_some(self._store.fetch, [*written, *others], self._is_fetched)
        return fetch[: len(written)], fetch[len(written) :]

    def committed(self) -> tuple[list[Any], list[Any]]:
        """The result of `fetch()`; values to donate are committed to their devices."""
        written, others = self.fetch()
        if self.donates:
            written = [jax.device_put(value, value.sharding) for value in written]
        return written, others

    def read_for_donation(self) -> tuple[list[Any], list[Any]]:
        """The result of `fetch()` for a call that may donate the written values."""
        written, others = self.fetch()
        if self.donates and self._store is None:
            written = _copy_unless_ours(self._keys, written)
        return written, others

    def named_values(self) -> list[tuple[str, Any]]:
        variables = [*self.written, *self.others]
        values = _compat.read_all(variables)
        return [(v.path, value) for v, value in zip(variables, values, strict=True)]

    def write(self, news: list[Any]) -> None:
        if self._store is not None:
            news = move_some(self._store.put_back, news, self._is_fetched)
        elif self.donates:
            _mark_made(self._keys, news)
        if _compat.get_stateless_scope() is None:
            deque(map(setattr, self.written, itertools.repeat(_compat.VALUE), news), maxlen=0)
        else:
            _compat.write_all(self.written, news)


_made: dict[int, Callable[[], Any]] = {}


def _mark_made(variables: Sequence[int], values: Iterable[Any]) -> None:
    """Record that a step made these values of these variables (by `id`) while they live."""
    callbacks = map(_callback_for, variables)
    _made.update(zip(variables, map(weakref.ref, values, callbacks), strict=True))


@functools.lru_cache(maxsize=4096)
def _callback_for(variable: int) -> Callable[[Any], None]:
    return functools.partial(_forget, variable)


def _forget(variable: int, made: Callable[[], Any]) -> None:
    if _made.get(variable) is made:
        _made.pop(variable, None)


def _copy_unless_ours(variables: Sequence[int], values: list[Any]) -> list[Any]:
    """Copy, in the list, each value that no step made or that the user holds (`old = v.value`).

    `variables` are the variables' `id`s. Only the variable and the list may hold a value: its
    reference count tells whether the user does.
    """
    # The path of every step: no Python loop unless a value is copied.
    made = [made() for made in map(_made.get, variables, itertools.repeat(_gone))]
    is_own = list(map(operator.is_, made, values))
    del made
    holders = list(map(sys.getrefcount, values))
    if all(is_own) and max(holders, default=0) <= _SOLE_OWNER:
        return values
    for i in range(len(values)):
        if not is_own[i] or holders[i] > _SOLE_OWNER:
            values[i] = copy_array(values[i])
    return values


def _gone() -> None:
    """A dead reference: no step made the value."""


# The reference count of an array that only its variable and the list hold, measured as above: the
# count of an object that only a list holds, plus the variable's reference.
_SOLE_OWNER = max(map(sys.getrefcount, [object()])) + 1
