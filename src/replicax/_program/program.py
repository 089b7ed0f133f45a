"""The executor of every compiled step: it reads variables, computes, and writes variables.

A step takes over the memory of the variables it writes ("donation"). An array that came from
elsewhere may share its memory with what the user still holds: `device_put` onto more devices keeps
the buffer of the first. So whatever no step made is copied before.
"""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
from jax.core import Tracer
from jax.extend.core import get_opaque_trace_state

from replicax._core import events
from replicax._core.errors import UsageError
from replicax._core.events import COMPUTE
from replicax._core.host_calls import carried_out
from replicax._core.interrupts import uninterrupted
from replicax._core.placement import copied
from replicax._core.topology import may_deadlock
from replicax._core.tracing import is_staged, is_transformed, outside_of_all
from replicax._keras import _compat
from replicax._program.central import CentralProgram
from replicax._program.compiling import compiled
from replicax._program.explain import blame, raise_explained
from replicax._program.jaxpr import may_fail, tells_python

if TYPE_CHECKING:
    from replicax._program.capture import Captured
    from replicax._program.state_watch import StateWatch


@final
class Queue:
    """The step in flight on a set of devices that could dead-lock, whoever started it.

    XLA:CPU runs the devices of a process on one thread pool. If several steps are in flight,
    threads waiting in one step's all-reduce can leave none for the other devices. So a step waits
    for the one before it, be that of another function, of another model or of another strategy.

    Args:
        guards: Whether there is anything to wait for.
    """

    def __init__(self, *, guards: bool) -> None:
        self._guards = guards
        self._token: Any = None
        #: The queues of all sets that share a device with this one.
        self.near: tuple[Queue, ...] = (self,) if guards else ()

    def wait(self) -> None:
        """Wait until no step is in flight on any of the devices.

        A step that has failed is told of here, once.
        """
        for queue in self.near:
            token, queue._token = queue._token, None
            if token is not None:
                token.block_until_ready()

    def put(self, token: Any) -> None:
        """Note that a step was started.

        Args:
            token: An array that the step computes and that no later one takes over; None if it
                computes none.
        """
        if self._guards:
            self._token = token


_free = Queue(guards=False)
_queues: dict[frozenset[Any], Queue] = {}
_lock = threading.Lock()


def queue_of(devices: Collection[Any]) -> Queue:
    """The queue of all steps on these devices: the same for whoever asks."""
    if not may_deadlock(devices):
        return _free
    key = frozenset(devices)
    with _lock:
        if key not in _queues:
            made = _queues[key] = Queue(guards=True)
            near = [queue for others, queue in _queues.items() if others & key]
            made.near = tuple(near)
            for queue in near:
                if queue is not made:
                    queue.near = (*queue.near, made)
        return _queues[key]


@final
class Program:
    """A compiled step: it reads its variables, computes, and gives them their new values.

    Args:
        state: The variables.
        compiled: From `(written values, other values, arrays)` to `(outputs, new values, token)`;
            the token is an array that is there when all is computed.
        devices: Those that compute.
        is_common: Whether all workers compute it together.
        identity: A number of what it computes, the same on all workers.
        watch: Compares the variables of all workers now and then.
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
        self._is_checked = state.is_checked and not is_common
        self._steady = getattr(compiled, "program", compiled)
        self._is_new = True

    def __call__(self, doing: str, arrays: Any) -> Any:
        """Compute a step.

        Args:
            doing: What the step is, for messages.
            arrays: The nest of arrays of this call.

        Returns:
            The outputs.

        Raises:
            UsageError: If a program of JAX alone calls it, which knows no variables.
        """
        is_traced = get_opaque_trace_state() != outside_of_all()
        if is_traced and is_staged():
            return self.inline(arrays)
        if self._is_common or events.listeners:
            events.begin_step(doing, common=self._is_common, identity=self._identity)
        try:
            self._queue.wait()
            if self._watch is not None:
                self._watch.step(self.state.named)
            compiled = self.compiled if is_traced or self._is_new else self._steady
            with uninterrupted:  # a signal between donation and write would lose the values
                written, others = self.state.taken()
                has_tracers = is_traced and is_transformed()
                if has_tracers:  # then new values may be none, and the old ones stay
                    written = list(map(copied, written))
                if events.clock is None and not self._is_checked:
                    outputs, news, token = compiled(written, others, arrays)
                else:
                    call = [carried_out, compiled] if self._is_checked else [compiled]
                    outputs, news, token = events.timed(COMPUTE, *call, written, others, arrays)
                if has_tracers:
                    _refuse_tracers(self.state.written, news)
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
            raise_explained(error)
        return outputs

    def inline(self, arrays: Any) -> Any:
        """Compute it as a part of the program around it, which lends, keeps and waits.

        Raises:
            UsageError: If it has variables, and that program is one of JAX alone.
        """
        variables = [*self.state.written, *self.state.others]
        if variables and _compat.get_stateless_scope() is None:
            raise UsageError(
                "A step with variables is no part of what JAX compiles on its own. Received: "
                f"variable '{variables[0].path}' in `jax.jit`, `jax.lax.scan` or the like. Its "
                "value would be a constant there, and what is written would be lost. Compile "
                "with `rx.function` in place of `jax.jit`."
            )
        outputs, news, _ = self.compiled(*self.state.values(), arrays)
        _compat.write_all(self.state.written, news)
        return outputs


def _refuse_tracers(variables: Sequence[Any], news: Sequence[Any]) -> None:
    """Refuse to give variables what `jax.grad` or `jax.vmap` only computes with."""
    for variable, new in zip(variables, news, strict=True):
        if isinstance(new, Tracer):
            raise UsageError(
                "A variable gets a number. Received: for variable "
                f"'{variable.path}' a value of `jax.grad`, `jax.vmap` or the like around the "
                "step, which has none outside of it. Transform the function inside the step, or "
                "take a gradient with `rx.value_and_grad` or a `GradientTape`."
            )


@final
class ProgramState:
    """The variables that a program reads and writes.

    What is the same in each call is found out once: a step of few milliseconds may have hundreds.

    Args:
        variables: All of them.
        written: The positions of those that it writes.
        donates: Whether it may take over the memory of the values that it replaces.
        may_fail: Whether it calls Python, which may raise: then it takes over no memory, as the
            variables must have their values then.
        is_checked: Whether each call is waited for, and what Python has raised is raised.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        written: Sequence[int],
        *,
        donates: bool,
        may_fail: bool = False,
        is_checked: bool = False,
    ) -> None:
        is_written = set(written)
        self._order = [i in is_written for i in range(len(variables))]
        self.written = [variables[i] for i in written]
        self.others = [v for i, v in enumerate(variables) if i not in is_written]
        self._keys = list(map(id, self.written))
        self.store, self.away = _home_of([*self.written, *self.others])
        self.may_fail, self.is_checked = may_fail, is_checked
        self._wants_memory = donates
        donates = donates and not may_fail
        resident = all(map(_is_resident, [*self.written, *self.others]))
        #: Which of the written ones a call uses up; a program of variables that live away says it.
        self.replaced: Sequence[int] = range(len(self.written) if donates and resident else 0)

    @classmethod
    def of(cls, captured: Captured, *, donates: bool) -> ProgramState:
        """The variables of a captured function; only checks and prints are waited for."""
        closed = captured.jaxpr
        calls = {"may_fail": may_fail(closed), "is_checked": tells_python(closed)}
        return cls(captured.variables, captured.written, donates=donates, **calls)

    @property
    def donates(self) -> bool:
        """Whether a call uses up values."""
        return len(self.replaced) > 0

    def in_order(self, written: Sequence[Any], others: Sequence[Any]) -> list[Any]:
        """Values of the variables, as the program takes them."""
        mine, rest = iter(written), iter(others)
        return [next(mine if is_written else rest) for is_written in self._order]

    def values(self) -> tuple[list[Any], list[Any]]:
        """The values of the variables that are written, and those of the others."""
        if _compat.get_stateless_scope() is None and not _compat.hearers():
            # Each step takes this way: no loop in Python unless something is missing.
            written = list(map(_compat.stored, self.written))
            others = list(map(_compat.stored, self.others))
            if not any(map(operator.is_, itertools.chain(written, others), itertools.repeat(None))):
                return written, others
        return _compat.read_all(self.written), _compat.read_all(self.others)

    def bound(self) -> tuple[list[Any], list[Any]]:
        """The same, as a call has them: what it copies to use up is bound to its devices."""
        written, others = self.values()
        if self.donates:
            written = [jax.device_put(value, value.sharding) for value in written]
        return written, others

    def taken(self) -> tuple[list[Any], list[Any]]:
        """The same, for a call that uses up some of the first."""
        written, others = self.values()
        if len(self.replaced) == len(written):
            return _donatable(self._keys, written), others
        olds = [written[i] for i in self.replaced]
        for i in self.replaced:
            written[i] = None  # nobody else may hold what is used up
        olds = _donatable([self._keys[i] for i in self.replaced], olds)
        for i, old in zip(self.replaced, olds, strict=True):
            written[i] = old
        return written, others

    def named(self) -> list[tuple[str, Any]]:
        """The paths of the variables, with their values."""
        variables = [*self.written, *self.others]
        values = _compat.read_all(variables)
        return [(v.path, value) for v, value in zip(variables, values, strict=True)]

    def give(self, news: list[Any]) -> None:
        """Give the variables what a call on devices has made of them."""
        if self.replaced:
            _note_made(self._keys, news)
        if _compat.get_stateless_scope() is None:
            deque(map(setattr, self.written, itertools.repeat(_compat.VALUE), news), maxlen=0)
        else:
            _compat.write_all(self.written, news)

    def compile(
        self, step: Any, arrays: Any, *, apart: bool = True, out_shardings: Any = None, **how: Any
    ) -> Any:
        """Compile a step that reads and writes these variables.

        Args:
            step: From `(written values, other values, arrays)` to
                `(outputs, new values, token)`.
            arrays: Those of the call.
            apart: Whether variables that live away are lent and kept: not in a part of another
                program, nor in one that is only planned.
            out_shardings: Where the results go; without effect on variables that live away.
            how: What else `compiled` takes.
        """
        if self.store is None or not apart:
            donated = (0,) if self.donates else ()
            return compiled(step, donate_argnums=donated, out_shardings=out_shardings, **how)
        written, others = self.values()
        is_away = self.away[: len(written)]
        found = CentralProgram(
            step,
            (written, others, arrays),
            away=[*self.away, *[False] * len(jax.tree.leaves(arrays))],
            news=lambda result: list(itertools.compress(result[1], is_away)),
            store=self.store,
            donates=self._wants_memory,
            **how,
        )
        self.replaced, self.may_fail = found.replaced, found.may_fail
        return found


def _home_of(variables: Sequence[Any]) -> tuple[Any, list[bool]]:
    """The store that is not where the replicas compute, if there is one; whose variables it has."""
    owners = [_compat.owner(variable) for variable in variables]
    stores = [owner for owner in owners if owner is not None and owner.home is not None]
    store = stores[0] if stores else None
    return store, [store is not None and owner is store for owner in owners]


def _is_resident(variable: Any) -> bool:
    store = _compat.owner(variable)
    return store is None or store.is_resident


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
    """The values, with a copy in place of each that is not the steps' own.

    Args:
        variables: Whose values they are (by `id`).
        values: The arrays; the list must be the only other holder beside the variable. A
            count of references tells whether the user holds one too (`old = v.value`).

    Returns:
        The same list.
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
