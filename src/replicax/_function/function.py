"""`function`: a stateful `jit` for code that reads and writes Keras variables."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, final, overload

import jax

from replicax._core import seams
from replicax._core.errors import checks_types
from replicax._core.events import Step, notify
from replicax._core.tracing import in_pipeline, running_in_python
from replicax._function.concrete import ConcreteFunction
from replicax._function.function_programs import Traces
from replicax._function.input_signature import InputSignature
from replicax._keras import _compat
from replicax._keras.per_instance import PerInstance
from replicax._program.agreement import agree_on_shared
from replicax._program.iterator_inputs import RunsInPython, blanks_for, end_of_data_as_error

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

logger = logging.getLogger("replicax")
_runs_eagerly = [False]


@overload
def function(func: Callable[P, R], *more: Any, **options: Any) -> StatefulFunction[P, R]: ...
@overload
def function(
    func: None = None, *more: Any, **options: Any
) -> Callable[[Callable[P, R]], StatefulFunction[P, R]]: ...
@checks_types
def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
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
    whole step. `next(iterator)` inside it takes a new element at each call. A function that loops
    over a data set runs as plain Python instead, and the functions it calls stay compiled.

    **Differs from TF:** Python's `if`, `while` and `for` on arrays are converted if the program
    imports `replicax.tf`, with fixed shapes. XLA always compiles the function. A model and an
    optimizer may be unbuilt at the first call.

    Args:
        func: The function to compile.
        input_signature: The shapes and types of the arguments; other arguments are refused.
        autograph: Whether control flow is converted.
        jit_compile: Ignored, as are the arguments that are not listed here. Use
            `run_functions_eagerly` to run functions as plain Python.
        reduce_retracing: Ignored: each shape gets a program.

    Returns:
        The compiled function.

    Raises:
        LeakedTracer: When the function needs the concrete value of an array.
        SignatureMismatch: When the arguments of a call do not match `input_signature`.

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
        return lambda func: StatefulFunction(func, input_signature, autograph)
    return StatefulFunction(func, input_signature, autograph)


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Let functions that `rx.function` made run as plain Python from now on, in all threads.

    `strategy.run` stays compiled: it cannot be otherwise.

    Args:
        run_eagerly: Whether they do.

    Example:
        >>> import replicax as rx
        >>> from replicax._function.function import run_functions_eagerly
        >>> run_functions_eagerly(True)
        >>> rx.function(lambda x: f"{x + 1}")(1)
        '2'
        >>> run_functions_eagerly(False)
    """
    _runs_eagerly[0] = bool(run_eagerly)


def functions_run_eagerly() -> bool:
    """Whether functions run as plain Python."""
    return _runs_eagerly[0]


@final
class StatefulFunction(Generic[P, R]):
    """The result of `function`: it compiles one program per signature."""

    def __init__(
        self, fn: Callable[P, R], input_signature: Any = None, autograph: bool = True
    ) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._autograph = autograph

        def traced(*args: Any, **kwargs: Any) -> Any:
            result = seams.call_traced(fn, args, kwargs, autograph)
            return jax.tree.map(_value_now, result)  # a returned variable may be assigned later

        self._traced = functools.update_wrapper(traced, fn, updated=())
        self.name = getattr(fn, "__qualname__", "a function")
        self.inputs = InputSignature.of(fn, input_signature)
        self._specs = input_signature
        self._owner: type | None = None
        self._traces = PerInstance(Traces)

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner = owner

    @overload
    def __get__(self, instance: None, owner: Any = None) -> Self: ...
    @overload
    def __get__(
        self: StatefulFunction[Concatenate[Any, Q], R], instance: Any, owner: Any = None
    ) -> BoundFunction[Q, R]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundFunction(self, instance)

    def __reduce__(self) -> Any:
        return StatefulFunction, (self._fn, self._specs, self._autograph)

    @property
    def num_traces(self) -> int:
        """The number of signatures for which the function was compiled."""
        return sum(len(traces.programs) for traces in self._traces.all())

    def experimental_get_tracing_count(self) -> int:
        """The same as `num_traces`."""
        return self.num_traces

    @property
    def python_function(self) -> Callable[..., Any]:
        """The Python function."""
        return self._fn

    @property
    def traced_function(self) -> Callable[..., Any]:
        """The Python function with its control flow converted."""
        return self._traced

    @property
    def calls(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments of past calls, one per signature, with specs for arrays."""
        return self.calls_of(None)

    def calls_of(self, instance: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        return list(self._traces.of(instance).calls.values())

    @property
    def input_signature(self) -> Any:
        """The specs of the arguments; None if none were given."""
        return None if self._specs is None else tuple(self._specs)

    def pretty_printed_concrete_signatures(self) -> str:
        """The signature and the number of programs, as text."""
        given = f", called with {tuple(self._specs)}" if self._specs is not None else ""
        parameters = inspect.signature(self._fn)
        return f"{self.name}{parameters}{given}: {self.num_traces} programs"

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Make a function for given argument specs.

        Args:
            args: Arrays, specs (`tf.TensorSpec`) of arrays, and constants. They may be left out if
                there is an input signature.
            kwargs: The same, by name.

        Returns:
            A function that knows the shapes of its arguments and results.
        """
        return ConcreteFunction(self, args, kwargs, self.inputs)

    def warm_up(self, *args: Any, **kwargs: Any) -> bool:
        """Compile the function for arguments like these without calling it.

        Compiling can overlap with reading data: `iter(dataset)` starts to read and shuffle.
        All workers call it together. The data set must know the shapes of its batches, from its
        arrays or from the signature of a generator. No element is taken from it.

        Args:
            args: As for a call. A distributed data set stands for one of its full batches, also
                for a function that would loop over it. No element is taken from an iterator.
            kwargs: The same, by name.

        Returns:
            Whether there is a program for the arguments now; False for a function that runs as
            plain Python.

        Raises:
            UsageError: If a data set does not know the shapes of its batches.

        Example:
            >>> import keras
            >>> import replicax as rx
            >>> strategy = rx.MirroredStrategy()
            >>> with strategy.scope():
            ...     seen = keras.Variable(0.0)
            >>> @rx.function
            ... def step(batch):
            ...     totals = strategy.run(lambda rows: rows.sum(), args=(batch,))
            ...     seen.assign_add(strategy.reduce("SUM", totals, axis=None))
            >>> data = rx.data.Dataset.from_tensor_slices([float(x) for x in range(8)]).batch(4)
            >>> batches = strategy.experimental_distribute_dataset(data)
            >>> iterator = iter(batches)
            >>> step.warm_up(batches), float(seen.value)
            (True, 0.0)
            >>> for batch in iterator:
            ...     step(batch)
            >>> float(seen.value), step.num_traces
            (28.0, 1)
        """
        return self.warm_up_for(*self._owned(args), kwargs)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.call(*self._owned(args), kwargs)

    def _owned(self, args: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """Split off the instance if the function is called as `Class.fn(instance)`."""
        owned = self._owner is not None and args and isinstance(args[0], self._owner)
        return (args[0], args[1:]) if owned else (None, args)

    def warm_up_for(self, instance: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        traces = self._traces.of(instance)
        if functions_run_eagerly() or traces.runs_in_python:
            return False
        fn = _method(self._traced, instance)
        args, kwargs = blanks_for((args, kwargs))
        if self.inputs is not None:
            args, kwargs = self.inputs.bound(args, kwargs)
        try:
            program, arrays, _ = traces.program(self._fn, fn, args, kwargs, is_called=False)
        except RunsInPython:
            return False
        program.warm_up(arrays)
        return True

    def call(self, instance: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if self.inputs is not None:
            args, kwargs = self.inputs.bound(args, kwargs)
        traced = _method(self._traced, instance)
        if _compat.get_stateless_scope() is not None:
            self._traces.of(instance).record_call(args, kwargs)
            return traced(*args, **kwargs)  # inlined into the function around it
        traces, fn = self._traces.of(instance), _method(self._fn, instance)
        if functions_run_eagerly():
            return fn(*args, **kwargs)
        if not traces.runs_in_python:
            try:
                program, arrays, elements = traces.program(self._fn, traced, args, kwargs)
                name = f"call of {self.name}"
                if program.is_common:
                    agree_on_shared(f"arguments in the {name}", arrays)
                result = program(name, arrays)
                notify(lambda: Step(name, (args, kwargs, elements), result))
                return result
            except RunsInPython as signal:
                if signal.always:
                    traces.runs_as_python(once=signal.once)
                if not in_pipeline():  # there all functions are plain Python
                    signal.log(logger, self.name)
        with running_in_python(), end_of_data_as_error():
            return fn(*args, **kwargs)


def _value_now(result: Any) -> Any:
    return _compat.read(result) if isinstance(result, _compat.KerasVariable) else result


def _method(fn: Callable[..., Any], instance: Any) -> Callable[..., Any]:
    return fn if instance is None else functools.partial(fn, instance)


@final
class BoundFunction(Generic[P, R]):
    """A compiled method, bound to an object."""

    def __init__(self, func: StatefulFunction, instance: Any) -> None:
        self.func = func
        self.instance = instance
        self.__name__ = getattr(func, "__name__", "method")
        self.__doc__ = func.__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(functools.partial(self.func.python_function, self.instance))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.func.call(self.instance, args, kwargs)

    @property
    def traced_function(self) -> Callable[..., Any]:
        """The Python method with its control flow converted, bound to the object."""
        return functools.partial(self.func.traced_function, self.instance)

    @property
    def calls(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments of past calls, one per signature, with specs for arrays."""
        return self.func.calls_of(self.instance)

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, BoundFunction) and self.func is other.func
        return same and self.instance is other.instance

    def __hash__(self) -> int:
        return hash((id(self.func), id(self.instance)))

    def warm_up(self, *args: Any, **kwargs: Any) -> bool:
        """Compile the method without calling it: see `StatefulFunction.warm_up`."""
        return self.func.warm_up_for(self.instance, args, kwargs)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """Make a function for argument specs: see `StatefulFunction.get_concrete_function`."""
        return ConcreteFunction(self, args, kwargs, self.func.inputs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "func" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.func, name)
