"""A program whose variables live on one device, and whose replicas compute on others.

The replicas get the variables that they need to compute gradients; the update is done at home,
once. What an optimizer keeps never leaves its device, and its memory is used again.

So a step has two parts. The second one has the operations that only new values of variables need,
that are equal on all replicas and that do not work on the rows of a batch: above all, the update by
an optimizer. A guess that is wrong costs time, never a number: any part of a pure program can be
computed first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import PartitionSpec

from replicax._core.topology import AXIS
from replicax._core.tracing import is_traced
from replicax._program.compiling import compiled
from replicax._program.jaxpr import Operation, bind, flatten, may_fail, named
from replicax._program.replication import NOTHING, VARIES, is_collective, labels_of_results
from replicax._program.rows import Axis, axes_of_results, summed_axes

if TYPE_CHECKING:
    from replicax._core.store import Store
    from replicax._program.program import ProgramState


def compile_step(
    state: ProgramState,
    step: Any,
    arrays: Any,
    *,
    apart: bool = True,
    out_shardings: Any = None,
    **how: Any,
) -> Any:
    """Compile a step that reads and writes variables, in two parts if these live elsewhere.

    It is from `(written values, other values, arrays)` to `(outputs, new values, token)`. A step
    that is a part of another program, or is only planned, is not taken `apart`. `out_shardings`
    have no effect on variables that live elsewhere. `how` is what else `compiled` takes.
    """
    if state.store is None or not apart:
        donated = (0,) if state.donates else ()
        return compiled(step, donate_argnums=donated, out_shardings=out_shardings, **how)
    written, others = state.values()
    is_away = state.away[: len(written)]
    found = CentralProgram(
        step,
        (written, others, arrays),
        away=[*state.away, *[False] * len(jax.tree.leaves(arrays))],
        news=lambda result: list(itertools.compress(result[1], is_away)),
        store=state.store,
        donates=state.wants_memory,
        **how,
    )
    state.replaced, state.may_fail = found.replaced, found.may_fail
    return found


@final
class CentralProgram:
    """A pure function as two programs: of the replicas, and of the device where variables live.

    `away` says for each array of `args` whether it is the value of a variable that lives in the
    store. `news` picks the new values of the first of these variables from the function's result.
    If it `donates`, new values may take the memory of old ones. `how` is what `compiled` takes for
    the program of the replicas.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        *,
        away: Sequence[bool],
        news: Callable[[Any], Any],
        store: Store,
        donates: bool,
        **how: Any,
    ) -> None:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        leaves, self._tree = jax.tree.flatten(shapes)
        self._inside, self._store, self._count = jax.jit(fn), store, len(leaves)
        self._away = [i for i, lives_away in enumerate(away) if lives_away]
        # Each new value, with the position of the old one.
        places = jax.tree.leaves(news(self._tree.unflatten(range(len(leaves)))))
        self._olds = dict(zip(places, self._away, strict=False))
        rows = [
            0 if aval.ndim and not lives_away else None
            for aval, lives_away in zip(closed.in_avals, away, strict=True)
        ]
        self._plan(Operations(closed, rows))
        #: Positions of the arguments whose memory is used for new values.
        self.replaced = self._replaced() if donates and not may_fail(closed) else []
        self.may_fail = may_fail(closed)
        # JAX gives memory that is used again to the first result that it fits: in this order to
        # the variable's own. To another's, XLA would copy it out of the way first.
        order = {i: place for place, i in enumerate(self.replaced)}
        self._late.sort(key=lambda k: order.get(self._olds[k], len(order)))
        self._rest = [i for i in self._at_home if i not in order]
        leaves = jax.tree.leaves(args)
        some = store.lend([leaves[i] for i in self._away[:1]])
        self._layout = some[0].sharding if some else None
        self._compile(closed.out_avals, self._layout, how)

    def _plan(self, operations: Operations) -> None:
        """Find the two parts, and what each of them takes and gives."""
        self._operations, outputs = operations, operations.outputs
        inputs = {key: i for i, key in enumerate(operations.inputs)}
        self._kept = [k for k, old in self._olds.items() if outputs[k] is operations.inputs[old]]
        given = [k for k in range(self._count) if k not in self._olds]
        self._first, self._second = parted(operations, [outputs[k] for k in given])
        early = {key for operation in self._first for key in operation.results}
        news = [k for k in self._olds if k not in self._kept]
        #: What the replicas compute: results, new values, and what the second part needs.
        self._given, self._moved = given, [k for k in news if outputs[k] in early]
        self._late = [k for k in news if outputs[k] not in early]
        taken = _taken(self._second, [outputs[k] for k in self._late], operations)
        away = {operations.inputs[i] for i in self._away}
        self._between = [key for key in taken if key not in away]
        self._at_home = [inputs[key] for key in taken if key in away]
        wanted = [*(outputs[k] for k in [*given, *self._moved]), *self._between]
        self._to_replicas = [inputs[key] for key in _taken(self._first, wanted, operations)]

    def _replaced(self) -> list[int]:
        """What only the second part reads, and nobody after it."""
        read, old = {*self._to_replicas}, {self._olds[k] for k in [*self._late, *self._moved]}
        return [i for i in self._at_home if i in old and i not in read]

    def _compile(self, avals: Sequence[Any], layout: Any, how: dict[str, Any]) -> None:
        operations, outputs = self._operations, self._operations.outputs
        keys, constants = operations.inputs, operations.constants
        early = [*self._given, *self._moved]

        def for_replicas(values: Sequence[Any]) -> Any:
            given = dict(zip([keys[i] for i in self._to_replicas], values, strict=True))
            wanted = [outputs[k] for k in early]
            found = computed(self._first, constants, given, [*wanted, *self._between])
            found[: len(early)] = [_array(v, avals[k]) for v, k in zip(found, early, strict=False)]
            return found[: len(self._given)], found[len(self._given) :]

        def at_home(olds: Sequence[Any], others: Sequence[Any], between: Sequence[Any]) -> Any:
            places = [keys[i] for i in [*self.replaced, *self._rest]]
            given = dict(zip([*places, *self._between], [*olds, *others, *between], strict=True))
            found = computed_once(self._second, constants, given, [outputs[k] for k in self._late])
            # Two variables never share an array: the memory of one may be used again.
            return [jnp.copy(_array(v, avals[k])) for v, k in zip(found, self._late, strict=True)]

        layouts = [layout] * len(self._moved)
        layouts += [None if operations.varies(key) else layout for key in self._between]
        self._for_replicas = compiled(for_replicas, out_shardings=(None, layouts), **how)
        home = self._store.home
        self._update = compiled(
            at_home, devices=home and home.device_set, donate_argnums=(0,), out_shardings=home
        )

    def __call__(self, *args: Any) -> Any:
        """Call it with values of variables where they live; their new values are there, too."""
        leaves, tree = jax.tree.flatten(args)
        if is_traced():
            return self._traced(tree, leaves)
        values = {i: leaves[i] for i in self._to_replicas}
        lent = [i for i in self._away if i in values]
        values.update(zip(lent, self._store.lend([leaves[i] for i in lent]), strict=True))
        given, home = self._for_replicas(list(values.values()))
        home = self._store.keep(home)
        results: dict[int, Any] = dict(zip(self._given, given, strict=True))
        results.update(zip(self._moved, home, strict=False))
        results.update({k: leaves[self._olds[k]] for k in self._kept})
        if self._late:
            olds, rest = (
                [self._bound(leaves[i]) for i in places] for places in (self.replaced, self._rest)
            )
            news = self._update(olds, rest, home[len(self._moved) :])
            results.update(zip(self._late, news, strict=True))
        return self._tree.unflatten([results[k] for k in range(self._count)])

    def _bound(self, value: Any) -> Any:
        """A value laid out as updates leave it; JAX compiles the update once more for others."""
        home = self._store.home
        return value if home is None or value.sharding is home else jax.device_put(value, home)

    def _traced(self, tree: Any, leaves: list[Any]) -> Any:
        """Compute it inside another program, or in a gradient: the replicas compute all of it."""
        for i in self._away:
            leaves[i] = jax.device_put(leaves[i], self._layout)
        results = jax.tree.leaves(self._inside(*tree.unflatten(leaves)))
        for k in self._olds:
            results[k] = jax.device_put(results[k], self._store.home)
        return self._tree.unflatten(results)


def _taken(
    operations: Sequence[Operation], wanted: Sequence[Any], whole: Operations
) -> dict[Any, None]:
    """The keys of what a part takes, for its operations or as it is: no constants."""
    made = {key for operation in operations for key in operation.results}
    asked = [key for operation in operations for key in operation.operands]
    return {
        key: None for key in [*asked, *wanted] if key not in made and key not in whole.constants
    }


def _array(value: Any, aval: Any) -> Any:
    """A value of a program, where a constant may be a number."""
    return value if isinstance(value, jax.Array) else jnp.asarray(value, aval.dtype)


# Operations that say on which devices values are: they stay with the replicas.
_PLACED = {"sharding_constraint", "shard_map", "reshard", "mesh_cast", "layout_constraint"}
# Parameters of operations that say where their results are.
_LAYOUTS = {"sharding", "out_sharding"}


@dataclass(eq=False)
class _Map:
    """A part of a program that each replica computes by itself.

    For each value that goes into it or comes out, `entering` or `leaving` says how it is divided.
    """

    mesh: Any
    entering: dict[Any, PartitionSpec] = field(default_factory=dict)
    leaving: dict[Any, PartitionSpec] = field(default_factory=dict)


@final
class Operations:
    """All operations of a program, those inside of calls and maps, too.

    `rows` has the axis of the rows in each input; None for an input without rows.
    """

    def __init__(self, closed: Any, rows: Sequence[Axis]) -> None:
        self.constants: dict[Any, Any] = {}
        self.rows: dict[Any, Axis] = {}
        self._varying: set[Any] = set()
        self.all: list[Operation] = []
        self.inputs = [object() for _ in rows]
        for key, axis in zip(self.inputs, rows, strict=True):
            self._note(key, varies=axis is not None, rows=axis)
        self.outputs = self._flatten(closed, self.inputs, None)

    def varies(self, key: Any) -> bool:
        """Whether a value is of rows, or of one replica."""
        return key in self._varying

    def _note(self, key: Any, *, varies: bool, rows: Axis = None) -> None:
        self.rows[key] = rows
        if varies:
            self._varying.add(key)

    def _flatten(self, closed: Any, keys: Sequence[Any], within: _Map | None) -> list[Any]:
        """Note the operations of a program; the keys of its results."""

        def constant(value: Any, kind: Any = None) -> Any:
            key = object()
            # A number that was made inside of a map carries its mesh.
            carries = within is not None and kind is not None
            dtype = getattr(kind, "dtype", None)
            self.constants[key] = np.asarray(value, dtype) if carries else value
            return key

        return flatten(closed, keys, constant, functools.partial(self._operation, within))

    def _operation(self, within: _Map | None, equation: Any, operands: list[Any]) -> list[Any]:
        if within is None and _maps_replicas(equation):
            return self._enter(equation, operands)
        results = [object() for _ in equation.outvars]
        differ = [self.varies(key) for key in operands]
        axes = [self.rows.get(key) for key in operands]
        found: Sequence[Axis] = [None] * len(results)
        if within is not None:
            labels = [frozenset({VARIES}) if one else NOTHING for one in differ]
            varying = [VARIES in one for one in labels_of_results(equation, labels)]
        elif any(differ) and summed_axes(equation, axes) is None:
            varying, found = [True] * len(results), axes_of_results(equation, axes)
        else:
            varying = [False] * len(results)
        for key, varies, axis in zip(results, varying, found, strict=True):
            self._note(key, varies=varies, rows=axis)
        # A sum over rows is no longer of rows, but each replica adds up its own.
        stays = any(differ) or any(varying) or bool(equation.effects)
        stays = stays or _is_bound_to_devices(equation)
        self.all.append(Operation(equation, operands, results, within, stays))
        return results

    def _enter(self, equation: Any, operands: list[Any]) -> list[Any]:
        """Note the operations inside a map; a value that is not divided stays the same value."""
        params = equation.params
        here = _Map(params["mesh"])
        inside = [
            self._through(here, key, spec, into=True)
            for key, spec in zip(operands, params["in_specs"], strict=True)
        ]
        body = params["jaxpr"]
        closed = ClosedJaxpr(getattr(body, "jaxpr", body), ())
        results = self._flatten(closed, inside, here)
        return [
            self._through(here, key, spec, into=False)
            for key, spec in zip(results, params["out_specs"], strict=True)
        ]

    def _through(self, here: _Map, key: Any, spec: PartitionSpec, *, into: bool) -> Any:
        axis = _axis_of(spec)
        if axis is None and (into or not self.varies(key)):
            return key
        there = object()
        (here.entering if into else here.leaving)[there] = spec
        self._note(there, varies=axis is not None, rows=None if into else axis)
        self.all.append(Operation(None, [key], [there], here, stays=True))
        return there


def parted(
    operations: Operations, needed: Collection[Any]
) -> tuple[list[Operation], list[Operation]]:
    """The operations of the first part, which gives `needed`, and of the second.

    Those that nobody needs are left out.
    """
    live, first = set(operations.outputs), set(needed)
    parts: tuple[list[Operation], list[Operation]] = [], []
    for operation in reversed(operations.all):
        effects = operation.equation is not None and bool(operation.equation.effects)
        if not effects and live.isdisjoint(operation.results):
            continue
        live.update(operation.operands)
        is_second = not operation.stays and first.isdisjoint(operation.results)
        if not is_second:
            first.update(operation.operands)
        parts[is_second].append(operation)
    return parts[0][::-1], parts[1][::-1]


def computed(
    operations: Sequence[Operation],
    constants: Mapping[Any, Any],
    given: Mapping[Any, Any],
    wanted: Sequence[Any],
) -> list[Any]:
    """Inside a compiled program: the values of these keys, by operations in their order."""
    known = {**constants, **given}
    for within, each in itertools.groupby(operations, lambda operation: operation.within):
        group = list(each)
        if within is None:
            _compute(group, known)
        else:
            outside = (o.operands for o in operations if o.within is not within)
            needed = {*wanted, *itertools.chain.from_iterable(outside)}
            _compute_mapped(within, group, known, constants, needed)
    return [known[key] for key in wanted]


def computed_once(
    operations: Sequence[Operation],
    constants: Mapping[Any, Any],
    given: Mapping[Any, Any],
    wanted: Sequence[Any],
) -> list[Any]:
    """`computed` on one device, for values that are equal on all replicas."""
    known = {**constants, **given}
    _compute([_anywhere(operation) for operation in operations], known)
    return [known[key] for key in wanted]


def _anywhere(operation: Operation) -> Operation:
    """An operation that was traced for the replicas, for another device."""
    equation = operation.equation
    params = {**equation.params, **dict.fromkeys(_LAYOUTS & equation.params.keys())}
    return operation._replace(equation=equation.replace(params=params))


def _compute(operations: Sequence[Operation], known: dict[Any, Any]) -> None:
    for equation, operands, results, *_ in operations:
        values = [known[key] for key in operands]
        if equation is not None:
            with named(equation):
                values = bind(equation, values)
        known.update(zip(results, values, strict=True))


def _compute_mapped(
    within: _Map,
    operations: Sequence[Operation],
    known: dict[Any, Any],
    constants: Mapping[Any, Any],
    needed: Collection[Any],
) -> None:
    # An operation may have no results: it prints, for one.
    entering = {o.results[0]: o.operands[0] for o in operations if _enters(o)}
    inside = [o for o in operations if not _enters(o)]
    made = {key for o in operations for key in o.results}
    used = dict.fromkeys(key for o in inside for key in o.operands)
    whole = [key for key in used if key not in made and key not in constants]
    out = [key for o in inside for key in o.results if key in needed]

    def mapped(parts: Sequence[Any], others: Sequence[Any]) -> Any:
        values = {**constants, **dict(zip([*entering, *whole], [*parts, *others], strict=True))}
        _compute(inside, values)
        # Always an output: XLA runs a map without one on one device only.
        return [values[key] for key in out], jnp.int32(0)

    plain = PartitionSpec()
    in_specs = [within.entering[key] for key in entering], [plain] * len(whole)
    out_specs = [within.leaving.get(key, plain) for key in out], plain
    shared = jax.shard_map(
        mapped, mesh=within.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )
    results, _ = shared([known[key] for key in entering.values()], [known[key] for key in whole])
    known.update(zip(out, results, strict=True))


def _enters(operation: Operation) -> bool:
    here = operation.within
    return here is not None and any(key in here.entering for key in operation.results)


def _maps_replicas(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    return name == "shard_map" and tuple(params["mesh"].axis_names) == (AXIS,)


def _axis_of(spec: PartitionSpec) -> Axis:
    """The axis of a value that the replicas divide."""
    return next((i for i, name in enumerate(spec) if name is not None), None)


def _is_bound_to_devices(equation: Any) -> bool:
    if equation.primitive.name in _PLACED or is_collective(equation):
        return True
    inner = jax.extend.core.jaxprs_in_params(equation.params)
    return any(_is_bound_to_devices(one) or _is_laid_out(one) for j in inner for one in j.eqns)


def _is_laid_out(equation: Any) -> bool:
    return any(equation.params.get(name) is not None for name in _LAYOUTS)
