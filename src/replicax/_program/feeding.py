"""Data that a traced function asks for: it becomes an input, or the function a host loop.

One element of an iterator is an input of the program, which is taken anew for each call. What goes
through data in a loop cannot be a program: the number of rounds is not known, and an element
taken while tracing would be a constant of it. Then `HostLoop` ends the trace, and the function
runs as plain Python from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Hashable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import jax

from replicax._core import seams
from replicax._core.errors import OutOfRangeError, UsageError
from replicax._core.tracing import current_reader, current_trace, read_by, refuse_inside_a_trace
from replicax._program.capture import TraceAgain

if TYPE_CHECKING:
    import logging

# A loop of so few rounds costs little when it is written out, and stays part of the program.
MAX_UNROLLED = 16


class HostLoop(TraceAgain):
    """Raised while a function is traced that only plain Python can run.

    `what` it does, empty if that was logged before; `once` if it does so in its first call only;
    `always` if it does so for any arguments, not just for these; `is_slow` if nearly all of it is
    computed outside compiled programs.
    """

    def __init__(
        self, what: str = "", *, once: bool = False, always: bool = True, is_slow: bool = False
    ) -> None:
        super().__init__(what)
        self.what = what
        self.once = once
        self.always = always
        self.is_slow = is_slow

    def log(self, logger: logging.Logger, name: str) -> None:
        if not self.what:
            return
        if self.is_slow:
            logger.warning("%s runs as plain Python, which is slow: %s", name, self.what)
        else:
            text = "%s runs as plain Python (functions that it calls are compiled), because it %s"
            logger.info(text, name, self.what)


class NeedsElement(TraceAgain):
    """The function asks an iterator for its next element."""

    def __init__(self, iterator: Any) -> None:
        super().__init__(iterator)
        self.iterator = iterator


class Feed(NamedTuple):
    """Which iterator an element comes from.

    `leaf` is its number among the leaves of the arguments; else it is the `iterator`.
    """

    leaf: int | None
    iterator: Any

    @classmethod
    def of(cls, iterator: Any, leaves: Sequence[Any]) -> Feed:
        """The feed of an iterator that a call with these leaves has asked."""
        for number, leaf in enumerate(leaves):
            if leaf is not None and leaf.value is iterator:
                return cls(number, None)
        return cls(None, iterator)

    def source(self, leaves: Sequence[Any]) -> Any:
        return self.iterator if self.leaf is None else leaves[self.leaf].value


@final
class Elements:
    """Answers a traced function: each iterator has one element for it."""

    def __init__(self, elements: Sequence[tuple[Any, Any]]) -> None:
        self._elements = {id(iterator): [element] for iterator, element in elements}
        self._trace = current_trace()
        self._signal: TraceAgain | None = None

    def answer(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the traced function; a signal ends the trace even if the function catches it."""
        with read_by(self):
            try:
                return fn(*args, **kwargs)
            finally:
                if self._signal is not None:
                    raise self._signal

    def take(self, iterator: Any) -> Any:
        waiting = self._elements.get(id(iterator))
        if waiting is None:
            self._end(NeedsElement(iterator))
        refuse_inside_a_trace(self._trace)
        if not waiting:
            self.loop("takes more than one element of an iterator")
        return waiting.pop()

    def loop(self, what: str) -> NoReturn:
        self._end(HostLoop(what))

    def begin(self, what: str) -> None:
        self._end(HostLoop(what, once=True))

    def unrolls(self, rounds: int) -> bool:
        return rounds <= MAX_UNROLLED

    def _end(self, signal: TraceAgain) -> NoReturn:
        self._signal = self._signal or signal
        raise signal


@final
class Refusal:
    """Answers a replica function, which cannot be a host loop."""

    def __init__(self) -> None:
        self._around = current_reader()

    def take(self, iterator: Any) -> NoReturn:
        self.loop("takes an element of an iterator")

    def loop(self, what: str) -> NoReturn:
        loops = seams.spelled(
            "`tf.while_loop` or `tf.map_fn`", "`keras.ops.while_loop` or `jax.lax.map`"
        )
        raise UsageError(
            f"A function that runs on replicas or on a worker cannot read data: it {what}. Take "
            "the data outside, `strategy.run(fn, args=(next(iterator),))`, and loop there; loop "
            f"over numbers with `range`, {loops}."
        )

    def begin(self, what: str) -> None:
        """Let the function around it run as plain Python, if there is one: it cannot itself."""
        if self._around is not None:
            self._around.begin(what)

    def unrolls(self, rounds: int) -> bool:
        return rounds <= MAX_UNROLLED


def is_data(leaf: Any) -> bool:
    """Whether a leaf is a data set or an iterator over one."""
    return hasattr(leaf, "host_batches")


def is_iterator(leaf: Any) -> bool:
    """Whether a leaf is an iterator over a data set: it has a position."""
    return is_data(leaf) and hasattr(leaf, "put_back")


def first_of(iterator: Any) -> tuple[Any, Any]:
    """The next element of an iterator, and its position before."""
    with read_by(None):
        state = iterator.get_state()
        return next_of(iterator), state


def next_of(iterator: Any) -> Any:
    with an_end_is_an_error():
        return next(iterator)


def blank_of(source: Any) -> Any:
    """Zeros such as the next element of a data set, or of an iterator; nothing is taken."""
    if not hasattr(source, "blank"):
        raise UsageError(
            f"Cannot warm up with an iterator of type {type(source).__name__}: its batches are "
            "not known. Distribute its data set, "
            "`strategy.experimental_distribute_dataset(dataset)`."
        )
    return source.blank()


def blanks_for(arguments: Any) -> Any:
    """The same, with zeros such as a batch for each distributed data set."""
    return jax.tree.map(
        lambda leaf: blank_of(leaf) if is_data(leaf) and not is_iterator(leaf) else leaf, arguments
    )


@contextlib.contextmanager
def an_end_is_an_error() -> Generator[None]:
    """What a call of a compiled function raises at the end of the data."""
    try:
        yield
    except StopIteration as end:
        raise OutOfRangeError(
            "A compiled function read past the end of its data set. Catch this error, count the "
            "steps, or `repeat()` the data set."
        ) from end


def static_key(leaf: Any) -> Hashable:
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


def structure_of(fn: Any, kept: list[Any], around: tuple[int, ...] = ()) -> Hashable:
    """What a function is made of: equal for two that a `def` in a loop makes of the same things.

    `fn` may also be what a function holds; `around` are the functions that hold it. `kept` gets
    what the structure names by `id`.
    """
    if not isinstance(fn, FunctionType):
        kept.append(fn)
        return static_key(fn)
    if id(fn) in around:
        return ("itself", around.index(id(fn)))
    around = (*around, id(fn))
    held = [*(cell.cell_contents for cell in fn.__closure__ or () if _is_filled(cell))]
    held += [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    kept.append(fn.__globals__)
    parts = tuple(structure_of(value, kept, around) for value in held)
    return (fn.__code__, id(fn.__globals__), tuple(fn.__kwdefaults__ or ()), parts)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
