"""A step in two parts: what the replicas compute, and what is done with their sums.

The second part has the operations that only new values of variables need, that are equal on all
replicas and that do not work on the rows of a batch: above all, the update by an optimizer. One
device can compute it for all.

A guess that is wrong costs time, never a number: any part of a pure program can be computed first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr
from jax.sharding import PartitionSpec

from replicax._core.topology import AXIS
from replicax._program.jaxpr import Operation, bind, flatten, named
from replicax._program.replication import NOTHING, VARIES, is_collective, labels_of_results
from replicax._program.rows import Axis, axes_of_results, summed_axes

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
