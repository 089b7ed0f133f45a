"""A program whose variables live on one device, and whose replicas compute on others.

The replicas get the variables that they need to compute gradients; the update is done at home,
once. What an optimizer keeps never leaves its device, and its memory is used again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp

from replicax._core.tracing import is_traced
from replicax._program.compiling import compiled
from replicax._program.jaxpr import Operation, may_fail
from replicax._program.parting import Operations, computed, computed_once, parted

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
