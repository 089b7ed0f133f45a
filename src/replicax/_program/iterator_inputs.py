"""Iterators that a traced function reads: an element becomes an input of the program.

Each call takes a new element. A function that loops over data cannot be compiled: the number of
rounds is unknown, and an element taken while tracing would be a constant. Then `RunsInPython` ends
the trace, and the function runs as plain Python from then on. `static_key` and `structure_of` make
cache keys of arguments that are not arrays.
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
from replicax._program.capture import Retrace

if TYPE_CHECKING:
    import logging

# Longer loops run in Python: unrolled they would take long to compile.
MAX_UNROLLED = 16


class RunsInPython(Retrace):
    """Raised during the trace of a function that only plain Python can run.

    `what`: what the function does, empty if logged before; `once`: in its first call only;
    `always`: for any arguments, not only these; `is_slow`: hardly anything of it is compiled.
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


class NeedsElement(Retrace):
    """The function asks an iterator for its next element."""

    def __init__(self, iterator: Any) -> None:
        super().__init__(iterator)
        self.iterator = iterator


class IteratorInput(NamedTuple):
    """The iterator of an element: a `leaf` of the arguments by number, or another `iterator`."""

    leaf: int | None
    iterator: Any

    @classmethod
    def of(cls, iterator: Any, leaves: Sequence[Any]) -> IteratorInput:
        """Describe an iterator that a call with these leaves has read."""
        for number, leaf in enumerate(leaves):
            if leaf is not None and leaf.value is iterator:
                return cls(number, None)
        return cls(None, iterator)

    def source(self, leaves: Sequence[Any]) -> Any:
        return self.iterator if self.leaf is None else leaves[self.leaf].value


@final
class TracedIterators:
    """The reader of a traced function: it may take one element from each iterator."""

    def __init__(self, elements: Sequence[tuple[Any, Any]]) -> None:
        self._elements = {id(iterator): [element] for iterator, element in elements}
        self._trace = current_trace()
        self._signal: Retrace | None = None

    def answer(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the function; a signal ends the trace even if the function catches it."""
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
        self._end(RunsInPython(what))

    def begin(self, what: str) -> None:
        self._end(RunsInPython(what, once=True))

    def _end(self, signal: Retrace) -> NoReturn:
        self._signal = self._signal or signal
        raise signal


@final
class NoIterators:
    """The reader of a replica function, which cannot run as plain Python."""

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
        """Let the function around it, if there is one, run as plain Python."""
        if self._around is not None:
            self._around.begin(what)


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
    with end_of_data_as_error():
        return next(iterator)


def blank_of(source: Any) -> Any:
    """Zeros like the next element of a data set or an iterator; no element is taken."""
    if not hasattr(source, "blank"):
        raise UsageError(
            f"Cannot warm up with an iterator of type {type(source).__name__}: its batches are "
            "not known. Distribute its data set, "
            "`strategy.experimental_distribute_dataset(dataset)`."
        )
    return source.blank()


def blanks_for(arguments: Any) -> Any:
    """The arguments with a batch of zeros for each distributed data set."""
    return jax.tree.map(
        lambda leaf: blank_of(leaf) if is_data(leaf) and not is_iterator(leaf) else leaf, arguments
    )


@contextlib.contextmanager
def end_of_data_as_error() -> Generator[None]:
    """Raise `OutOfRangeError` where a compiled function reads past the end of its data."""
    try:
        yield
    except StopIteration as end:
        raise OutOfRangeError(
            "A compiled function read past the end of its data set. Catch this error, count the "
            "steps, or `repeat()` the data set."
        ) from end


def static_key(leaf: Any) -> Hashable:
    if is_iterator(leaf):  # each pass over a data set has a new iterator
        return (type(leaf), id(leaf.dataset))
    if isinstance(leaf, int | str | bytes | type(None)):
        return (type(leaf), leaf)
    if isinstance(leaf, float | complex):
        return (type(leaf), repr(leaf))  # 0.0 == -0.0, but they are different constants
    if hasattr(type(leaf), "__tf_tracing_type__"):
        return (type(leaf), leaf.__tf_tracing_type__(None))
    # By identity: models, variables, functions. The cache keeps the leaf alive.
    return (type(leaf), id(leaf))


def structure_of(fn: Any, kept: list[Any], around: tuple[int, ...] = ()) -> Hashable:
    """A key of a function's code and closure: equal for functions that a `def` in a loop makes.

    `fn` may also be a value in a closure; `around` are the functions around it. Objects whose `id`s
    are in the key are appended to `kept`.
    """
    if not isinstance(fn, FunctionType):
        kept.append(fn)
        return static_key(fn)
    if id(fn) in around:
        return ("itself", around.index(id(fn)))
    around = (*around, id(fn))
    held = [*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]
    for cell in fn.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            held.append(cell.cell_contents)
    kept.append(fn.__globals__)
    parts = tuple(structure_of(value, kept, around) for value in held)
    return (fn.__code__, id(fn.__globals__), tuple(fn.__kwdefaults__ or ()), parts)
