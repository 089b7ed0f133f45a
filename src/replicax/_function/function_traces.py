"""What is known of a compiled function: its programs, and which iterators its calls ask."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import jax
import numpy as np

from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._function.function_program import FunctionProgram
from replicax._function.input_signature import PLAIN
from replicax._keras.feeding import Feed, Feeds, NeedsElement, blank_of, first_of, next_of
from replicax._keras.signature import ProgramCache, Signature

_NOTHING = Signature.of((), {})
_MOST_CALLS = 64


class Found(NamedTuple):
    """A program for a call.

    Args:
        program: The program.
        arrays: What it is called with.
        given: The elements of iterators among that.
    """

    program: FunctionProgram
    arrays: list[Any]
    given: list[Any]


@final
class Traces:
    """What is known of a function, of one object if it is a method."""

    def __init__(self) -> None:
        self.programs = ProgramCache()
        self.feeds = Feeds()
        self.is_host_loop = False
        self.calls: OrderedDict[Any, Any] = OrderedDict()
        self._has_begun = False

    def note(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Remember what a call looked like, for `saved_model.save`, if it can be written down."""
        signature = Signature.of(args, kwargs)
        arrays = [*signature.arrays, *(leaf.value for leaf in signature.leaves if leaf)]
        if all(isinstance(one, (jax.Array, np.ndarray, *PLAIN)) for one in arrays):
            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in signature.arrays]
            self.calls[signature.key] = signature.rebuild(shapes)
            if len(self.calls) > _MOST_CALLS:
                self.calls.popitem(last=False)

    def runs_as_python(self, *, once: bool) -> None:
        """The function is to run as plain Python, now or always.

        Raises:
            UsageError: If that was to be once, and it has been.
        """
        if once and self._has_begun:
            raise UsageError(
                "A function makes its variables once, when it is first called. Received: a later "
                "call that makes a variable of what it computes. There would be a new one in each "
                "step. Make it outside, or write `if self.v is None: self.v = tf.Variable(…)`."
            )
        self._has_begun = True
        self.is_host_loop = not once

    def program(
        self,
        function: Callable[..., Any],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        is_called: bool = True,
    ) -> Found:
        """The program for a call, traced if there is none yet.

        Args:
            function: The function as it was written.
            fn: The same, of its object if it is a method.
            args: The call's arguments.
            kwargs: The same, by name.
            is_called: Whether there is such a call, for which elements of iterators are taken.

        Raises:
            HostLoop: If there can be none.
        """
        signature = Signature.of(args, kwargs, expand=True)
        # The function may ask for the current strategy: each gets programs of its own.
        frame = current_frame()
        strategy = frame.strategy if frame else None
        key = (signature.key, id(strategy))
        feeds = self.feeds.of(key)
        take, first = (next_of, first_of) if is_called else (blank_of, _blank_first)
        iterators = [feed.source(signature.leaves) for feed in feeds]
        elements = [(take(iterator), None) for iterator in iterators]
        keep = (signature.kept, strategy)
        while True:
            given = [element for element, _ in elements]
            fed = Signature.of(given, {}, expand=True) if given else _NOTHING
            make = functools.partial(FunctionProgram, fn, signature, iterators, fed)
            try:
                known = len(self.programs)
                program = self.programs.get(function, (key, fed.key), make, keep=keep)
                if len(self.programs) != known and not iterators:
                    self.note(args, kwargs)
                break
            except NeedsElement as need:
                iterators.append(need.iterator)
                elements.append(first(need.iterator))
            except Exception:  # nothing was computed, so nothing was taken
                if is_called:
                    for iterator, (element, state) in zip(iterators, elements, strict=True):
                        iterator.put_back(element, state)
                raise
        if len(iterators) > len(feeds):
            feeds = [Feed.of(iterator, signature.leaves) for iterator in iterators]
            self.feeds.note(key, feeds, keep=keep)
        return Found(program, [*signature.arrays, *fed.arrays], given)


def _blank_first(iterator: Any) -> tuple[Any, None]:
    return blank_of(iterator), None
