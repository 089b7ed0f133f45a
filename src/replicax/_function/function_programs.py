"""The programs of a compiled function, and the iterators that its calls read."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from replicax._core import seams
from replicax._core.context import current_frame
from replicax._core.errors import UsageError
from replicax._core.machine.startup import begin
from replicax._core.placement import spans_processes
from replicax._core.topology import AXIS, MODEL
from replicax._core.tracing import NeedsValues
from replicax._core.values import PerReplica, is_distributed, is_text
from replicax._function.input_signature import PLAIN
from replicax._program.agreement import agree_on_program
from replicax._program.capture import Captured, Static, capture
from replicax._program.compiling import compile_for, compiled, devices_of, platform_of
from replicax._program.explain import root_of, user_line
from replicax._program.iterator_inputs import (
    IteratorInput,
    NeedsElement,
    RunsInPython,
    TracedIterators,
    blank_of,
    first_of,
    is_data,
    next_of,
)
from replicax._program.program import (
    LRUCache,
    Program,
    ProgramCache,
    ProgramState,
    Signature,
    rebuilt,
)
from replicax._program.table_gradients import evaluate_with_slices

_EMPTY = Signature.of((), {})
_MAX_CALLS = 64


class ProgramCall(NamedTuple):
    """A program, the arrays to call it with, and the iterators' elements among them."""

    program: FunctionProgram
    arrays: list[Any]
    elements: list[Any]


@final
class Traces:
    """The traces of a function, or of a method of one object."""

    def __init__(self) -> None:
        self.programs = ProgramCache()
        self.iterator_inputs: LRUCache[list[IteratorInput]] = LRUCache()
        self.uncompiled: LRUCache[bool] = LRUCache()
        self.runs_in_python = False
        self.calls: OrderedDict[Any, Any] = OrderedDict()
        self._has_begun = False

    def record_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        """Remember the specs of a call for `saved_model.save`, if they can be serialized."""
        signature = Signature.of(args, kwargs)
        arrays = [*signature.arrays, *(leaf.value for leaf in signature.leaves if leaf)]
        if all(isinstance(one, (jax.Array, np.ndarray, *PLAIN)) for one in arrays):
            shapes = [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in signature.arrays]
            self.calls[signature.key] = signature.rebuild(shapes)
            if len(self.calls) > _MAX_CALLS:
                self.calls.popitem(last=False)

    def runs_as_python(self, *, once: bool) -> None:
        """Run the function as plain Python, this `once` or always."""
        if once and self._has_begun:
            raise UsageError(
                "Cannot make a variable from a computed value in a later call of a function: each "
                "step would make a new one. Make it outside, or only `if self.v is None`."
            )
        self._has_begun = True
        self.runs_in_python = not once

    def program(
        self,
        function: Callable[..., Any],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        is_called: bool = True,
    ) -> ProgramCall:
        """Find the program for a call, or trace it; raise `RunsInPython` if it cannot be compiled.

        `fn` is `function`, bound to its object if it is a method. Elements are taken from iterators
        only if it `is_called`.
        """
        signature = Signature.of(args, kwargs, expand=True)
        # The function may read the current strategy, so each strategy gets its own programs.
        frame = current_frame()
        strategy = frame.strategy if frame else None
        key = (signature.key, id(strategy))
        iterator_inputs = self.iterator_inputs.get(key) or []
        take = next_of if is_called else blank_of
        iterators = [feed.source(signature.leaves) for feed in iterator_inputs]
        elements = [(take(iterator), None) for iterator in iterators]
        keep = (signature.kept, strategy)
        while True:
            given = [element for element, _ in elements]
            fed = Signature.of(given, {}, expand=True) if given else _EMPTY
            make = functools.partial(FunctionProgram, fn, signature, iterators, fed)
            try:
                if self.uncompiled.get((key, fed.key)):
                    raise RunsInPython(always=False)
                known = len(self.programs)
                program = self.programs.get(function, (key, fed.key), make, keep=keep)
                if len(self.programs) != known and not iterators:
                    self.record_call(args, kwargs)
                break
            except NeedsElement as need:
                one = need.iterator
                iterators.append(one)
                elements.append(first_of(one) if is_called else (blank_of(one), None))
            except Exception as error:  # nothing was computed: give the elements back
                if is_called:
                    for iterator, (element, state) in zip(iterators, elements, strict=True):
                        iterator.put_back(element, state)
                if isinstance(error, RunsInPython) and not error.always:
                    self._note(key, iterators, signature.leaves, keep)
                    self.uncompiled.put((key, fed.key), True, keep=(keep, fed.kept))
                raise
        if len(iterators) > len(iterator_inputs):
            self._note(key, iterators, signature.leaves, keep)
        return ProgramCall(program, [*signature.arrays, *fed.arrays], given)

    def _note(self, key: Any, iterators: list[Any], leaves: Sequence[Any], keep: Any) -> None:
        inputs = [IteratorInput.of(iterator, leaves) for iterator in iterators]
        self.iterator_inputs.put(key, inputs, keep=keep)


def _with_line(error: NeedsValues) -> str:
    """The operation that needs values, and the user's line, unless the text names it."""
    root = root_of(error)  # Keras puts a layer's arguments into the text of another
    error = root if isinstance(root, NeedsValues) else error
    line = user_line(error)
    is_new = line.startswith("at ") and line not in str(error)
    return f"{error} It is needed {line}." if is_new else str(error)


@final
class FunctionProgram:
    """A function compiled for the shapes of a call."""

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: Signature,
        iterators: Sequence[Any],
        fed: Signature,
    ) -> None:
        if any(map(is_text, [*signature.arrays, *fed.arrays])):
            raise RunsInPython("gets text, which XLA does not compute", always=False)
        begin()
        rebuild, refill = signature.without_arrays().rebuild, fed.without_arrays().rebuild
        count = len(signature.arrays)

        def flat(leaves: Any) -> Any:
            args, kwargs = rebuild(leaves[:count])
            elements, _ = refill(leaves[count:])
            reader = TracedIterators(list(zip(iterators, elements, strict=True)))
            return reader.answer(fn, *args, **kwargs)

        arrays = [*signature.arrays, *fed.arrays]
        try:
            self._captured = captured = capture(flat, arrays)
        except NeedsValues as error:
            if not seams.speaks_tensorflow or error.of_replicas:
                raise
            # Arrays in TensorFlow's graphs may have any size.
            raise RunsInPython(_with_line(error), always=False, is_slow=True) from error
        if any(isinstance(leaf, Static) and is_data(leaf.value) for leaf in captured.outputs):
            raise RunsInPython("returns a data set")  # a new one in each call
        self._state = state = ProgramState.of(captured, donates=True)
        written, others = state.fetch()
        values = state.in_order(written, others)
        outputs = _layouts_of_outputs(captured, [*values, *arrays])
        self.is_common = any(map(spans_processes, [*values, *arrays]))
        identity = 0
        if self.is_common:
            what = f"program of {getattr(fn, '__qualname__', 'a function')}"
            identity = agree_on_program(what, captured.jaxpr, arrays, captured.common(values))

        devices = devices_of(captured.jaxpr, [*values, *arrays])
        # A variable of no scope ends where the program computes, if that is elsewhere.
        shardings = (value.sharding for value in written)
        layouts = [one if one.device_set == set(devices) else None for one in shardings]
        platform = platform_of(devices)

        def program(written: list[Any], others: list[Any], leaves: list[Any]) -> Any:
            values = state.in_order(written, others)
            results = evaluate_with_slices(captured.jaxpr, *values, *leaves, platform=platform)
            return results[: captured.num_outputs], results[captured.num_outputs :], jnp.int32(0)

        made = compiled(
            program,
            donate_argnums=(0,) if state.donates else (),
            out_shardings=(outputs, layouts, None),
            devices=devices,
            calls=state.calls,
        )
        self._program = Program(state, made, devices, is_common=self.is_common, identity=identity)

    def warm_up(self, leaves: list[Any]) -> None:
        compile_for(self._program.compiled, *self._state.committed(), leaves)

    def __call__(self, doing: str, leaves: list[Any]) -> Any:
        return rebuilt(self._captured.tree, self._captured.outputs, self._program(doing, leaves))


def _layouts_of_outputs(captured: Captured, inputs: Sequence[Any]) -> list[Any]:
    """The layouts of the results: on the whole mesh if an input is; None lets XLA choose."""
    meshes = [
        value.sharding.mesh
        for value in inputs
        if spans_processes(value) or MODEL in getattr(getattr(value, "sharding", None), "spec", ())
    ]
    if not meshes:
        return [None] * captured.num_outputs
    whole, split = (NamedSharding(meshes[0], PartitionSpec(*axes)) for axes in ((), (AXIS,)))
    layouts = [whole] * captured.num_outputs
    found = rebuilt(captured.tree, captured.outputs, range(captured.num_outputs))
    for leaf in jax.tree.leaves(found, is_leaf=is_distributed):
        if isinstance(leaf, PerReplica) and leaf.is_even:
            layouts[leaf.stacked] = split
    return layouts
