"""`function`: a stateful `jit` for code that reads and writes Keras variables."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, final

from replicax._core.context import current_frame
from replicax._core.device_errors import blame
from replicax._core.eager import functions_run_eagerly
from replicax._core.errors import UsageError
from replicax._core.program import agree_on_shared
from replicax._core.progress import Step, begin_step, dispatched, tell
from replicax._core.tracing import host_loop
from replicax._keras import _compat
from replicax._keras.capture import raise_explained
from replicax._keras.concrete import ConcreteFunction
from replicax._keras.feeding import (
    Feed,
    Feeds,
    HostLoop,
    NeedsElement,
    an_end_is_an_error,
    first_of,
    next_of,
)
from replicax._keras.function_program import FunctionProgram
from replicax._keras.input_signature import InputSignature
from replicax._keras.per_instance import PerInstance
from replicax._keras.signature import ProgramCache, Signature

logger = logging.getLogger("replicax")

_NOTHING = Signature.of((), {})


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Sequence[Any] | None = None,
    autograph: bool = True,
    jit_compile: bool | None = None,
    reduce_retracing: bool = False,
    experimental_implements: str | None = None,
    experimental_autograph_options: Any = None,
    experimental_attributes: Any = None,
    experimental_relax_shapes: bool | None = None,
    experimental_compile: bool | None = None,
    experimental_follow_type_hints: bool | None = None,
) -> Any:
    """Compile a function that reads and writes Keras variables; also a decorator.

    The function is traced once per signature: shapes and types of arrays, and the values of
    everything else (numbers, strings, flags). Around `strategy.run` it makes one program of the
    whole step. `next(iterator)` in it takes a new element for each call. A function that loops over
    a data set or a long `tf.range` runs as plain Python instead; what it calls stays compiled.

    **Differs from TF:** there is no AutoGraph: `if` and `while` on arrays are errors that name
    `tf.cond` and `tf.while_loop`. It is always compiled by XLA. A model and an optimizer may be
    unbuilt at the first call.

    Args:
        func: The function to compile.
        input_signature: The shapes and types of its arguments; others are refused.
        autograph: Ignored, as are the arguments that are not listed here.
        jit_compile: Ignored: see `run_functions_eagerly` for running it as plain Python.
        reduce_retracing: Ignored: each shape is a program of its own.

    Returns:
        The compiled function.

    Raises:
        LeakedTracer: When the function needs the concrete value of an array.
        SignatureMismatch: When it is called with what `input_signature` does not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> import keras
        >>> import replicax as rx
        >>> counter = keras.Variable(0, dtype="int32")
        >>> @rx.function
        ... def count(step):
        ...     counter.assign_add(step)
        ...     return counter * 10
        >>> int(count(jnp.int32(2))), int(count(jnp.int32(3))), int(counter.value)
        (20, 50, 5)
    """
    if func is None:
        return lambda func: StatefulFunction(func, input_signature)
    return StatefulFunction(func, input_signature)


@final
class _Traces:
    """What is known of a function, of one object if it is a method."""

    def __init__(self) -> None:
        self.programs = ProgramCache()
        self.feeds = Feeds()
        self.is_host_loop = False
        self._has_begun = False
        self.in_flight: Any = None

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


@final
class StatefulFunction:
    """What `function` returns: programs by signature, and the variables they touch.

    Args:
        fn: The function.
        input_signature: What its arguments look like.
    """

    def __init__(self, fn: Callable[..., Any], input_signature: Any = None) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self.name = getattr(fn, "__qualname__", "a function")
        self.inputs = InputSignature.of(fn, input_signature)
        self._specs = input_signature
        self._owner: type | None = None
        self._traces = PerInstance(_Traces)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundFunction(self, instance)

    def __reduce__(self) -> Any:
        return StatefulFunction, (self._fn, self._specs)

    @property
    def num_traces(self) -> int:
        """For how many signatures the function was compiled."""
        return sum(len(traces.programs) for traces in self._traces.all())

    def experimental_get_tracing_count(self) -> int:
        """The same as `num_traces`."""
        return self.num_traces

    @property
    def python_function(self) -> Callable[..., Any]:
        """The function as it was written."""
        return self._fn

    @property
    def input_signature(self) -> Any:
        """What its arguments have to look like; None if that was not said."""
        return None if self._specs is None else tuple(self._specs)

    def pretty_printed_concrete_signatures(self) -> str:
        """The signature, and how many programs there are."""
        given = f", called with {tuple(self._specs)}" if self._specs is not None else ""
        parameters = inspect.signature(self._fn)
        return f"{self.name}{parameters}{given}: {self.num_traces} programs"

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The function for arguments of a kind.

        Args:
            args: Arrays, or specs (`tf.TensorSpec`) for them, and constants; if there is an input
                signature, they may be left out.
            kwargs: The same, by name.

        Returns:
            A function with the shapes of its arguments and results.
        """
        return ConcreteFunction(self, args, kwargs, self.inputs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owned = self._owner is not None and args and isinstance(args[0], self._owner)
        return self.call(args[0] if owned else None, args[1:] if owned else args, kwargs)

    def call(self, instance: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the function, as a method if there is an instance."""
        fn = self._fn if instance is None else functools.partial(self._fn, instance)
        if self.inputs is not None:
            args, kwargs = self.inputs.bound(args, kwargs)
        if _compat.get_stateless_scope() is not None:
            return fn(*args, **kwargs)  # inlined into the function around it
        traces = self._traces.of(instance)
        if functions_run_eagerly():
            return fn(*args, **kwargs)
        if not traces.is_host_loop:
            try:
                return self._compiled(fn, traces, args, kwargs)
            except HostLoop as signal:
                traces.runs_as_python(once=signal.once)
                text = "%s runs as plain Python, and what it calls is compiled: it %s"
                logger.info(text, self.name, signal.what)
        with host_loop(), an_end_is_an_error():
            return fn(*args, **kwargs)

    def _compiled(
        self, fn: Callable[..., Any], traces: _Traces, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        signature = Signature.of(args, kwargs, expand=True)
        # The function may ask for the current strategy: each gets programs of its own.
        frame = current_frame()
        strategy = frame.strategy if frame else None
        key = (signature.key, id(strategy))
        feeds = traces.feeds.of(key)
        iterators = [feed.source(signature.leaves) for feed in feeds]
        elements = [(next_of(iterator), None) for iterator in iterators]
        keep = (signature.kept, strategy)
        while True:
            given = [element for element, _ in elements]
            fed = Signature.of(given, {}, expand=True) if given else _NOTHING
            make = functools.partial(FunctionProgram, fn, signature, iterators, fed)
            try:
                program = traces.programs.get(self._fn, (key, fed.key), make, keep=keep)
                break
            except NeedsElement as need:
                iterators.append(need.iterator)
                elements.append(first_of(need.iterator))
            except Exception:  # nothing was computed, so nothing was taken
                for iterator, (element, state) in zip(iterators, elements, strict=True):
                    iterator.put_back(element, state)
                raise
        if len(iterators) > len(feeds):
            feeds = [Feed.of(iterator, signature.leaves) for iterator in iterators]
            traces.feeds.note(key, feeds, keep=keep)
        result = self._run(traces, program, [*signature.arrays, *fed.arrays])
        tell(lambda: Step(f"call of {self.name}", (args, kwargs, given), result))
        return result

    def _run(self, traces: _Traces, program: FunctionProgram, arrays: list[Any]) -> Any:
        name = f"call of {self.name}"
        if program.is_common:
            agree_on_shared(f"arguments in the {name}", arrays)
        begin_step(name, common=program.is_common)
        try:
            result, token = program(arrays, after=traces.in_flight)
        except Exception as error:
            blame(error)
            raise_explained(error)
        if program.is_common:
            dispatched(token.is_ready)
        # XLA:CPU dead-locks when steps with collectives run ahead: Topology.may_deadlock.
        devices = token.sharding.device_set
        spread = len(devices) > 1 and next(iter(devices)).platform == "cpu"
        traces.in_flight = token if spread else None
        return result


@final
class BoundFunction:
    """A compiled method of an object.

    Args:
        func: The compiled function.
        instance: The object.
    """

    def __init__(self, func: StatefulFunction, instance: Any) -> None:
        self.func = func
        self.instance = instance
        self.__name__ = getattr(func, "__name__", "method")
        self.__doc__ = func.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func.python_function, self.instance))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func.call(self.instance, args, kwargs)

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, BoundFunction) and self.func is other.func
        return same and self.instance is other.instance

    def __hash__(self) -> int:
        return hash((id(self.func), id(self.instance)))

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The function for arguments of a kind: see `StatefulFunction.get_concrete_function`."""
        return ConcreteFunction(self, args, kwargs, self.func.inputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "func" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.func, name)
