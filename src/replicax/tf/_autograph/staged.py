"""Branches and loops of compiled code, on the variables of a rewritten function.

malt hands over a statement as functions without arguments that read and assign the user's own
variables, and two more that get and set all of these. A branch or body is traced once to see what
becomes of each variable, and which Keras variables it touches; then it is traced for good.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from malt.operators.variables import UndefinedReturnValue

from replicax._core.errors import UsageError
from replicax._core.tracing import Reader, current_reader, current_trace, read_by
from replicax._keras import _compat
from replicax._program.explain import current_line
from replicax.tf._flow.ranges import Range
from replicax.tf._flow.tensor_array import TensorArray
from replicax.tf._flow.touched import Touched, arrays_of, in_scope, value_of

_PLAIN = (bool, int, float, complex, str, bytes)
_NUMBERS = _PLAIN[:4]
_ARRAYS = (*_NUMBERS, Tracer, jax.Array, np.ndarray, np.generic, _compat.KerasVariable)
_TYPED = (*_ARRAYS, jax.ShapeDtypeStruct)
# How malt names what says that a function has returned, or the rest of a loop's body is skipped.
FLAGS = "do_return", "break_", "continue_"


def undecided(value: Any) -> bool:
    """Whether Python cannot tell if a value is true: it is computed in the program."""
    value = _compat.read(value) if isinstance(value, _compat.KerasVariable) else value
    try:
        return isinstance(value, Tracer) and bool(value) is None
    except jax.errors.ConcretizationTypeError:
        return True


@final
class Undefined:
    """A variable without a value: never assigned, or in one branch only."""

    def __init__(self, name: str, where: str | None = None) -> None:
        self.name, self.where = name, where

    def __getattr__(self, attribute: str) -> NoReturn:
        self.read()

    def read(self) -> NoReturn:
        """Refuse to be read."""
        if self.where is None:
            raise UnboundLocalError(f"'{self.name}' is used before assignment")
        raise UsageError(
            f"'{self.name}' has no value {current_line()}: the `if` {self.where} assigns it in "
            "one branch only. Assign it before the `if`, or in both branches."
        )


class _Same(NamedTuple):
    """A leaf that stays outside the program: it is the same on all paths."""

    value: Any


class _Plan(NamedTuple):
    """The new form of a variable: its structure, and for each leaf an array's type, or `_Same`."""

    tree: Any
    leaves: list[Any]


def _is_absent(value: Any) -> bool:
    unwritten = isinstance(value, TensorArray) and value.element_shape is None
    return unwritten or isinstance(value, Undefined | UndefinedReturnValue)


def _flat(value: Any) -> tuple[list[Any], Any]:
    value = value.numpy() if isinstance(value, Range) else value
    return jax.tree.flatten(value, is_leaf=lambda leaf: leaf is None or _is_absent(leaf))


def _arrays_in(state: Any) -> list[Any]:
    return [leaf for leaf in _flat(state)[0] if isinstance(leaf, _ARRAYS)]


def _type_of(leaf: Any) -> Any:
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    array = leaf if isinstance(leaf, Tracer) else arrays_of(leaf)
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=array.weak_type)


def _as_array(value: Any) -> _Plan:
    """A variable whose numbers are all arrays of the program."""
    leaves, tree = _flat(value)
    typed = [_type_of(leaf) if isinstance(leaf, _ARRAYS) else _Same(leaf) for leaf in leaves]
    return _Plan(tree, typed)


def _joined(fills: bool, name: str, one: Any, other: Any) -> _Plan:
    """The new form of a variable that has one value in one branch, and another in the other."""
    if _is_absent(one) or _is_absent(other):
        # malt asks whether a function has returned before it uses what is returned.
        fills = fills or name.startswith("retval_")
        if fills or isinstance(one, TensorArray) or isinstance(other, TensorArray):
            return _as_array(other if _is_absent(one) else one)
        if one is not other:
            told = [value.where for value in (one, other) if isinstance(value, Undefined)]
            one = Undefined(name, next(filter(None, told), None) or current_line())
        return _as_array(one)
    (ones, tree), (others, second) = _flat(one), _flat(other)
    if tree != second:
        _refuse(name, one, other)
    return _Plan(tree, [_joined_leaf(name, *pair) for pair in zip(ones, others, strict=True)])


def _of_branches(names: Sequence[str], ones: Any, others: Any, *, fills: bool) -> list[_Plan]:
    """The new forms of variables after one of two branches."""
    # What a branch that returned has not assigned, nobody reads afterwards.
    flags = [number for number, name in enumerate(names) if name.startswith(FLAGS)]
    gone = [any(state[number] is True for number in flags) for state in (ones, others)]
    plans = []
    for name, one, other in zip(names, ones, others, strict=True):
        unread = gone[0] and _is_absent(one) or gone[1] and _is_absent(other)
        plans.append(_joined(fills or unread, name, one, other))
    return plans


def _joined_leaf(name: str, one: Any, other: Any, where: Sequence[str] = ()) -> Any:
    if one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and one == other):
        return _Same(one)
    if not (isinstance(one, _TYPED) and isinstance(other, _TYPED)):
        _refuse(name, one, other, *where)
    a, b = _type_of(one), _type_of(other)
    if a.shape != b.shape or (a.dtype != b.dtype and not (a.weak_type or b.weak_type)):
        _refuse(name, one, other, *where)
    # A Python number gives way to the type of an array.
    likes = [jnp.zeros((), t.dtype) if not t.weak_type else t.dtype.type(0).item() for t in (a, b)]
    weak = a.weak_type and b.weak_type
    return jax.ShapeDtypeStruct(a.shape, jnp.result_type(*likes), weak_type=weak)


def _carried(name: str, start: Any, plan: _Plan, after: Any) -> _Plan:
    """A variable of a loop, from what was planned and what it is after a round."""
    where = "before the loop", "after a round"
    leaves, tree = _flat(after)
    if _is_absent(start):
        return plan if _is_absent(after) else _as_array(after)
    if tree != plan.tree:
        _refuse(name, start, after, *where)
    found: list[Any] = []
    for planned, leaf in zip(plan.leaves, leaves, strict=True):
        is_same = isinstance(planned, _Same)
        found.append(_joined_leaf(name, planned.value if is_same else planned, leaf, where))
        if not is_same and found[-1].dtype != planned.dtype and not planned.weak_type:
            _refuse(name, start, after, *where)
    return _Plan(tree, found)


def _refuse(
    name: str, one: Any, other: Any, here: str = "in one branch", there: str = "in the other"
) -> NoReturn:
    what = "the value that is returned" if name.startswith("retval_") else f"'{name}'"
    raise UsageError(
        f"Cannot compile {what} {current_line()}: it is {_said(one)} {here} and {_said(other)} "
        f"{there}. Give it the same structure, shape and type in both, with `tf.cast`, `tf.zeros` "
        "of the full shape, or a `tf.TensorArray` for values that grow."
    )


def _said(value: Any) -> str:
    if _is_absent(value):
        return "nothing"
    leaves, tree = _flat(value)
    shown = [_named(leaf) if isinstance(leaf, _TYPED) else repr(leaf) for leaf in leaves]
    return shown[0] if tree == jax.tree.structure(0) else str(tree.unflatten(shown))


def _named(leaf: Any) -> str:
    about = _type_of(leaf)
    return f"{about.dtype}{list(about.shape)}"


def _taken(state: Sequence[Any], plans: Sequence[_Plan]) -> list[Any]:
    """The arrays of a state that go into the program or come out of it, in the planned types."""
    taken = []
    for value, plan in zip(state, plans, strict=True):
        absent = _is_absent(value)
        leaves = [0] * len(plan.leaves) if absent else _flat(value)[0]
        for leaf, planned in zip(leaves, plan.leaves, strict=True):
            if not isinstance(planned, _Same):
                new = jnp.zeros(planned.shape) if absent else arrays_of(leaf)
                taken.append(new.astype(planned.dtype))
    return taken


def _rebuilt(arrays: Sequence[Any], plans: Sequence[_Plan]) -> tuple[Any, ...]:
    rest = iter(arrays)
    leaves = [[p.value if isinstance(p, _Same) else next(rest) for p in q.leaves] for q in plans]
    return tuple(plan.tree.unflatten(each) for plan, each in zip(plans, leaves, strict=True))


class _Looking(threading.local):
    """The trace in which a branch or a body is looked at."""

    trace: Any = None


_looking = _Looking()


def _look(touched: Touched, fn: Callable[..., Any], *args: Any) -> None:
    """Trace a branch or a body to see what becomes of variables: no program comes of it.

    What is in it is then only looked at, too: else it would be traced twice at each depth.
    """

    def look(*args: Any) -> Any:
        around, _looking.trace = _looking.trace, current_trace()
        try:
            return fn(*args)
        finally:
            _looking.trace = around

    touched.by(look, *args)


def _is_looked_at() -> bool:
    # In a trace of its own, of `jax.jit` for one, code is traced for good: JAX may keep that.
    return _looking.trace is not None and _looking.trace is current_trace()


def _guessed(touched: Touched, plans: Sequence[_Plan]) -> tuple[Any, ...]:
    touched.assign(touched.values()[0])
    typed = [leaf for plan in plans for leaf in plan.leaves if not isinstance(leaf, _Same)]
    return _rebuilt([jnp.zeros(leaf.shape, leaf.dtype) for leaf in typed], plans)


class State(NamedTuple):
    """The variables that a statement assigns: how all of them are got and set, and their names."""

    get: Callable[[], Sequence[Any]]
    set: Callable[[Any], Any]
    names: Sequence[str]


def branch(cond: Any, branches: Any, state: State, count: int, *, fills: bool = False) -> None:
    """`if` on an array; the first `count` variables of the state are read afterwards.

    Where a branch leaves one of them without a value it is zero, if `fills` says so.
    """
    start = state.get()

    def outcome(fn: Callable[[], Any]) -> Any:
        state.set(start)
        fn()
        return state.get()[:count]

    def build() -> Any:
        touched, found = Touched(), []

        def look(fn: Callable[[], Any]) -> Any:
            found.append(outcome(fn))
            return _arrays_in(found[-1])

        for fn in branches:
            _look(touched, functools.partial(look, fn))
        plans = _of_branches(state.names[:count], *found, fills=fills)
        if _is_looked_at():
            return _guessed(touched, plans)

        def pure(fn: Callable[[], Any]) -> Callable[[Any, Any], Any]:
            return lambda values, others: touched.enter(
                values, others, lambda: _taken(outcome(fn), plans)
            )

        pred = jnp.asarray(value_of(cond), bool).reshape(())
        results, news = lax.cond(pred, *map(pure, branches), *touched.values())
        touched.assign(news)
        return _rebuilt(results, plans)

    ended = start
    try:
        ended = (*in_scope(build), *start[count:])
    finally:
        state.set(ended)


def loop(
    test: Callable[[Any], Any] | None,
    body: Callable[[Any], Any],
    state: State,
    rounds: Any = None,
    most: int | None = None,
) -> None:
    """A loop of the program: of `rounds` rounds, if given, while `test` of the next one holds.

    There are at most `most` rounds.
    """
    start, first = state.get(), 0
    if isinstance(rounds, int) and rounds == 0:
        return
    if isinstance(rounds, int) and test is None and any(v is None or _is_absent(v) for v in start):
        # Carried out ahead of the loop, a round tells what a variable is that has no value yet.
        body(jnp.int32(0))
        start, first = state.get(), 1
    ended = start
    try:
        ended = in_scope(lambda: _Loop(test, body, state, rounds, most).build(start, first))
    finally:
        state.set(ended)


@final
class _Loop:
    """A loop: see `loop` for the arguments."""

    def __init__(self, test: Any, body: Any, state: State, rounds: Any, most: Any) -> None:
        self._test, self._body, self._state = test, body, state
        self._rounds, self._most = rounds, most

    def build(self, start: Sequence[Any], first: int) -> tuple[Any, ...]:
        """Carry it out in the program, from this round on; the variables at its end."""
        touched, plans = Touched(), list(map(_as_array, start))
        for _ in range(4):  # a Python number gets the type of what is added to it
            after = self._after_a_round(touched, start, plans)
            before, plans = plans, list(map(_carried, self._state.names, start, plans, after))
            if plans == before:
                break
        if _is_looked_at():
            return _guessed(touched, plans)
        values, others = touched.values()

        def one_round(number: Any, carry: Any) -> Any:
            def run() -> Any:
                self._state.set(_rebuilt(carry[0], plans))
                self._body(number)
                return _taken(self._state.get(), plans)

            return touched.enter(carry[1], others, run)

        def more(number: Any, carry: Any) -> Any:
            def run() -> Any:
                self._state.set(_rebuilt(carry[0], plans))
                return jnp.asarray(value_of(self._test(number)), bool).reshape(())

            within = self._rounds is None or number < self._rounds
            tested = self._test is None or touched.enter(carry[1], others, run)[0]
            return jnp.logical_and(within, tested)

        result, news = self._lowered(one_round, more, first, (_taken(start, plans), values))
        touched.assign(news)
        return _rebuilt(result, plans)

    def _after_a_round(self, touched: Touched, start: Any, plans: Sequence[_Plan]) -> Any:
        found: list[Any] = []

        def look(arrays: Any, number: Any) -> Any:
            self._state.set(_rebuilt(arrays, plans))
            tested = [] if self._test is None else [self._tested(number)]
            self._body(number)
            found[:] = self._state.get()
            return tested + _arrays_in(found)

        reader = current_reader()
        with read_by(None if reader is None else _Inside(reader)):
            _look(touched, look, _taken(start, plans), jnp.int32(0))
        return found

    def _tested(self, number: Any) -> Any:
        tested = self._test(number)
        if undecided(tested) or self._rounds is not None or self._most is not None:
            return value_of(tested)
        raise UsageError(
            f"This loop never runs or never ends, {current_line()}: no array that it assigns "
            f"changes its condition, {bool(tested)}. Let the condition depend on a tensor of the "
            "loop, or on Python values only."
        )

    def _lowered(self, one_round: Any, more: Any, first: int, carry: Any) -> Any:
        limits = [limit for limit in (self._rounds, self._most) if isinstance(limit, int)]
        if not limits:
            state = jnp.int32(first), carry
            return lax.while_loop(
                lambda state: more(*state), lambda s: (s[0] + 1, one_round(*s)), state
            )[1]
        always = self._test is None and isinstance(self._rounds, int)

        def step(number: Any, carry: Any) -> Any:
            if always:
                return one_round(number, carry)
            return lax.cond(more(number, carry), one_round, lambda _, c: c, number, carry)

        return lax.fori_loop(first, min(limits), step, carry)


@final
class _Inside:
    """Answers in a loop of the program, where there is no element of an iterator for each round."""

    def __init__(self, reader: Reader) -> None:
        self.loop, self.begin = reader.loop, reader.begin

    def take(self, iterator: Any) -> NoReturn:
        """The function can only be a loop of Python."""
        self.loop("takes elements of an iterator in a loop")
