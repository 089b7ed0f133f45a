"""`get_concrete_function`: a compiled function for given argument specs, and its signature."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from replicax._core import seams
from replicax._core.errors import SignatureMismatch, UsageError
from replicax._function.input_signature import (
    PLAIN,
    InputSignature,
    fitted,
    flatten_specs,
    is_spec,
    numpy_dtype,
)
from replicax._keras import _compat
from replicax._program.capture import Captured, capture, is_array
from replicax._program.iterator_inputs import RunsInPython, TracedIterators
from replicax._program.jaxpr import flatten
from replicax._program.program import rebuilt


@final
@dataclass(frozen=True)
class Node:
    """An operation, an argument or a constant."""

    name: str  # unique in the graph
    op: str  # a JAX primitive, "Placeholder" or "Const"
    input: list[str] = field(default_factory=list)  # names of nodes

    @property
    def type(self) -> str:
        """The same as `op`: TensorFlow's operations have `type`, its nodes `op`."""
        return self.op


@final
@dataclass(frozen=True)
class GraphDef:
    """The nodes of a graph, in the order in which they are computed."""

    node: list[Node]

    def __str__(self) -> str:
        inputs = ["".join(f'  input: "{name}"\n' for name in node.input) for node in self.node]
        return "".join(
            f'node {{\n  name: "{node.name}"\n  op: "{node.op}"\n{lines}}}\n'
            for node, lines in zip(self.node, inputs, strict=True)
        )


@final
class Graph:
    """The operations of a program.

    **Differs from TF:** operations are JAX primitives, and a loop or a branch is one node with its
    body. The graph is read-only. The last arguments of the program, a closed jaxpr, have `names`;
    those before them are variables.
    """

    def __init__(self, program: Any, names: Sequence[str]) -> None:
        self._nodes: list[Node] = []
        self._used: dict[str, int] = {}
        jaxpr = program.jaxpr
        first = len(jaxpr.invars) - len(names)
        inputs = [f"variable_{number}" for number in range(first)] + [*names]
        found = [self._add(name or "argument", "Placeholder", []) for name in inputs]

        def constant(_: Any) -> str:
            return self._add("Const", "Const", [])

        def note(equation: Any, operands: list[str]) -> list[str]:
            op = equation.primitive.name
            return [self._add(op, op, operands)] * len(equation.outvars)

        flatten(program, found, constant, note, remat=True)

    def as_graph_def(self) -> GraphDef:
        return GraphDef(list(self._nodes))

    def get_operations(self) -> list[Node]:
        return list(self._nodes)

    def _add(self, name: str, op: str, inputs: Sequence[str]) -> str:
        count = self._used[name] = self._used.get(name, -1) + 1
        named = f"{name}_{count}" if count else name
        self._nodes.append(Node(named, op, list(inputs)))
        return named


logger = logging.getLogger("replicax")


@final
@dataclass(frozen=True)
class Spec:
    """The shape and dtype of an array."""

    shape: tuple[int | None, ...] | None  # None: any size of an axis, or any number of axes
    dtype: Any
    name: str | None = None

    def __repr__(self) -> str:
        named = "" if self.name is None else f", name={self.name!r}"
        shape = "<unknown>" if self.shape is None else self.shape
        return f"TensorSpec(shape={shape}, dtype={self.dtype_name}{named})"

    @property
    def dtype_name(self) -> str:
        return "string" if self.is_text else np.dtype(self.dtype).name

    @property
    def is_text(self) -> bool:
        return numpy_dtype(self.dtype) is None


@final
@dataclass(frozen=True)
class Traced:
    """A pure program. An axis of any size is a symbol in `shapes` and None in `specs`."""

    captured: Captured
    shapes: Sequence[Any]
    specs: Sequence[Spec]


@final
class ConcreteFunction:
    """A compiled function for given argument specs.

    **Differs from TF:** it is traced at its first call, and an axis of any size is compiled once
    for each size. XLA does not compute text: for text the Python function is called.

    Args:
        compiled: A compiled function, or a bound compiled method.
        args: Specs, arrays or constants.
        kwargs: The same, by name.
        inputs: The input signature, if there is one.
    """

    def __init__(
        self,
        compiled: Any,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        inputs: InputSignature | None,
    ) -> None:
        if inputs is not None and not args and not kwargs:
            args = inputs.specs
        self._compiled = compiled
        self._fn = compiled.traced_function
        self.__name__ = getattr(compiled, "__name__", "function")
        signature = inspect.signature(self._fn)
        given = signature.bind(*args, **kwargs).arguments
        for name, parameter in signature.parameters.items():  # default constants count as passed
            if parameter.default is None or isinstance(parameter.default, PLAIN):
                given.setdefault(name, parameter.default)
        self._given = {name: _as_specs(value, name) for name, value in given.items()}
        self._signature = signature

    def __repr__(self) -> str:
        return f"<ConcreteFunction {self.name}{self._with_specs()}>"

    @property
    def name(self) -> str:
        return self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with all its arguments, or with its arrays only."""
        try:
            given = self._fitted(args, kwargs)
        except TypeError:
            arrays = self._flat(args, kwargs)
            if arrays is None:
                raise
            given = self._filled(arrays)
        args, kwargs = self._arguments(given)
        return self._compiled(*args, **kwargs)

    def _arguments(self, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = inspect.BoundArguments(self._signature, given)  # pyright: ignore[reportArgumentType]
        return bound.args, bound.kwargs

    def _fitted(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Bind the arguments of a call by name, and add the constants that it leaves out."""
        given = {**self._given, **self._signature.bind_partial(*args, **kwargs).arguments}
        unchanged = [(name, value) for name, value in self._given.items() if given[name] is value]
        missing = [n for n, v in unchanged if any(isinstance(x, Spec) for x in flatten_specs(v)[0])]
        if missing:
            raise SignatureMismatch(
                f"The call of {self.name!r} lacks {missing}: only their shapes are known. Pass "
                "them as well."
            )
        known = self._given
        return {n: fitted(known[n], v, n) if n in known else v for n, v in given.items()}

    def _flat(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any] | None:
        """The arrays of a call that passes only arrays, in order and by name; None for other calls.

        A function that was made for a model and an array may be called with the array alone.
        """
        specs = self.specs
        rest = [spec.name for spec in specs[len(args) :]]
        if len(args) > len(specs) or sorted(rest, key=str) != sorted(kwargs):
            return None
        arrays = [*args, *(kwargs[name] for name in rest if name is not None)]
        return [fitted(s, a, s.name or "") for s, a in zip(specs, arrays, strict=True)]

    def _filled(self, arrays: Sequence[Any]) -> Any:
        rest = iter(arrays)
        return self._given_with(lambda leaf: next(rest) if isinstance(leaf, Spec) else leaf)

    def _given_with(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        """Apply `change` to each spec and constant, in the order of the arguments."""
        leaves, tree = flatten_specs([*self._given.values()])
        changed = tree.unflatten([change(leaf) for leaf in leaves])
        return dict(zip(self._given, changed, strict=True))

    @property
    def parameters(self) -> list[tuple[str, int]]:
        return [(p.name, int(p.kind)) for p in self._signature.parameters.values()]

    @property
    def specs(self) -> list[Spec]:
        leaves, _ = flatten_specs([*self._given.values()])
        return [leaf for leaf in leaves if isinstance(leaf, Spec)]

    @property
    def inputs_unknown(self) -> bool:
        """Whether an array may have any number of axes."""
        return any(spec.shape is None for spec in self.specs)

    @property
    def inference_fn(self) -> ConcreteFunction:
        """The function itself, since gradients are taken of it and not of a copy."""
        return self

    @property
    def function_type(self) -> inspect.Signature:
        """The parameters with their specs and constants, and the results if they are known."""
        known = self._with_specs()
        if any(spec.shape is None or spec.is_text for spec in self.specs):
            return known
        return known.replace(return_annotation=self.structured_outputs)

    def _with_specs(self) -> inspect.Signature:
        parameters = [
            p.replace(annotation=self._given.get(p.name, p.annotation))
            for p in self._signature.parameters.values()
        ]
        return self._signature.replace(parameters=parameters)

    @functools.cached_property
    def graph(self) -> Graph:
        """The operations of the program, in the form of a TensorFlow graph."""
        return Graph(self.traced().captured.jaxpr, [spec.name or "" for spec in self.specs])

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The specs of the positional and of the keyword arguments."""
        return self._arguments(dict(self._given))

    @functools.cached_property
    def structured_outputs(self) -> Any:
        """The specs of the results."""
        captured = self.traced().captured
        found = captured.jaxpr.out_avals[: captured.num_outputs]
        return rebuilt(captured.tree, captured.outputs, map(_spec_of, found))

    def traced(self) -> Traced:
        """Trace the function to a pure program, for axes of any size."""
        specs = self.specs
        self._check_is_known(specs)

        def fn(arrays: Sequence[Any]) -> Any:
            given = self._filled(arrays)
            args, kwargs = self._arguments(given)
            result = self._fn(*args, **kwargs)
            return jax.tree.map(_sizes_as_arrays, result, is_leaf=_is_open_shape)

        def traced(rows: str) -> Traced:
            shapes = symbolic(specs, rows)
            return Traced(capture(fn, shapes, reader=TracedIterators(())), shapes, specs)

        try:
            if sum(spec.shape[:1] == (None,) for spec in specs if spec.shape) > 1:
                try:
                    return traced("rows{}")
                except Exception:  # adding two arguments, for example, needs equal row counts
                    logger.debug("One number of rows for all arguments of %s.", self.name)
            return traced("rows")
        except RunsInPython as signal:
            raise UsageError(
                f"Cannot make one program of {self.name!r}, which runs as plain Python: it "
                f"{signal.what}. Pass it a batch as an array."
            ) from None

    def _check_is_known(self, specs: Sequence[Spec]) -> None:
        for spec in specs:
            if spec.shape is None or spec.is_text:
                example = seams.spelled(
                    "tf.TensorSpec([None, 3], tf.float32)",
                    'rx.data.ArraySpec((None, 3), "float32")',
                )
                lacking = "computes text" if spec.is_text else "has any number of axes"
                raise UsageError(
                    f"Cannot make one program of {self.name!r} for {spec}, which {lacking}. Call "
                    f"the function, or pass a spec such as `{example}`."
                )

    def with_axes(self, count: int) -> ConcreteFunction:
        """A copy in which each array of any number of axes has `count` axes."""

        def known(leaf: Any) -> Any:
            unknown = isinstance(leaf, Spec) and leaf.shape is None
            return replace(leaf, shape=(None,) * count) if unknown else leaf

        found = copy.copy(self)
        found._given = self._given_with(known)
        return found


def _as_specs(value: Any, name: str) -> Any:
    leaves, tree = flatten_specs(value)
    found = []
    for number, leaf in enumerate(leaves):
        own = name if len(leaves) == 1 else f"{name}_{number}"
        if is_spec(leaf) or is_array(leaf):
            named = getattr(leaf, "name", None) or own
            dtype = numpy_dtype(leaf.dtype) or leaf.dtype
            leaf = Spec(None if leaf.shape is None else tuple(leaf.shape), dtype, named)
        found.append(leaf)
    return tree.unflatten(found)


def _spec_of(aval: Any) -> Spec:
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape)
    return Spec(shape, aval.dtype)


def _sizes_as_arrays(leaf: Any) -> Any:
    """Make an array of a result, also of a size that the program computes."""
    if isinstance(leaf, _compat.KerasVariable):
        return jnp.asarray(_compat.read(leaf))
    if _is_open_shape(leaf):
        return jnp.stack([jnp.asarray(size) for size in leaf])
    return jnp.asarray(leaf) if jax.export.is_symbolic_dim(leaf) else leaf


def _is_open_shape(value: Any) -> bool:
    if not isinstance(value, tuple) or not any(map(jax.export.is_symbolic_dim, value)):
        return False
    return all(isinstance(size, int) or jax.export.is_symbolic_dim(size) for size in value)


def symbolic(specs: Sequence[Spec], rows: str) -> list[jax.ShapeDtypeStruct]:
    """Shapes with a symbol for each axis of any size. `rows` names the first axis of an array, and
    may format the array's number."""
    scope = jax.export.SymbolicScope()
    shapes = []
    for number, spec in enumerate(specs):
        assert spec.shape is not None
        first = rows.format(number)
        sizes = [
            str(size) if size is not None else f"size{number}_{axis}" if axis else first
            for axis, size in enumerate(spec.shape)
        ]
        shape = jax.export.symbolic_shape(", ".join(sizes), scope=scope)
        shapes.append(jax.ShapeDtypeStruct(shape, spec.dtype))
    return shapes
