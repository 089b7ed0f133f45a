"""Matrix products that are transposed at once, computed the other way round.

The gradient of a weight is one: JAX writes `transpose(dot(g, x))`. XLA:CPU makes `dot(x, g)` of it,
but not where a weight has more than two axes: then it copies `g` transposed, and that for each of
several weights that `x` is multiplied with. Nor does it before it has divided a program over
devices. Then the all-reduce of the global view stands between the two, and the optimizer reads the
sum across its rows, which is slow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from replicax._core.cpu_tuning import is_on


def with_products_turned(
    step: Callable[[Any, Any], Any], platform: str
) -> Callable[[Any, Any], Any]:
    """A step for devices of a kind that computes the same, with such products turned on CPUs."""

    def turned_step(state: Any, batch: Any) -> Any:
        closed, shapes = jax.make_jaxpr(step, return_shape=True)(state, batch)
        results = jaxpr_as_fun(turned_on(platform, closed))(*jax.tree.leaves((state, batch)))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return turned_step if platform == "cpu" else step


def turned_on(platform: str, closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program for devices of a kind: `turned` for CPUs, while that part of the tuning is on."""
    return turned(closed) if platform == "cpu" and is_on("products") else closed


def turned(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The program, without products that only a transpose needs; not those of inner programs."""
    jaxpr = closed.jaxpr
    atoms = [atom for equation in jaxpr.eqns for atom in equation.invars]
    uses = Counter(map(id, [*atoms, *jaxpr.outvars]))
    equations: list[Any] = []
    products: dict[int, int] = {}  # their places among these, by their results
    for equation in jaxpr.eqns:
        source = next(map(id, equation.invars), 0)
        place = products.get(source)
        if place is not None and uses[source] == 1 and _exchanges(equation, equations[place]):
            product, equations[place] = equations[place], None
            equation = _other_way_round(product, equation)
        elif equation.primitive.name == "dot_general":
            products[id(equation.outvars[0])] = len(equations)
        equations.append(equation)
    left = [equation for equation in equations if equation is not None]
    return closed.replace(jaxpr=jaxpr.replace(eqns=left))


def _exchanges(equation: Any, product: Any) -> bool:
    """Whether an equation is the transpose that exchanging a product's operands comes to."""
    if equation.primitive.name != "transpose":
        return False
    (contracted, _), (batch, _) = product.params["dimension_numbers"]
    rank, count = product.outvars[0].aval.ndim, len(batch)
    left = product.invars[0].aval.ndim - count - len(contracted)
    order = (*range(count), *range(count + left, rank), *range(count, count + left))
    return is_plain(product.params) and tuple(equation.params["permutation"]) == order


def is_plain(params: Mapping[str, Any]) -> bool:
    """Whether a product is not told by which algorithm, or where its axes are."""
    precision, layout = params["precision"], params["out_sharding"]
    undivided = layout is None or not any(layout.spec)
    return undivided and (precision is None or isinstance(precision, tuple))


def _other_way_round(product: Any, transpose: Any) -> Any:
    (left, right), (left_batch, right_batch) = product.params["dimension_numbers"]
    precision: Sequence[Any] | None = product.params["precision"]
    params = {
        **product.params,
        "dimension_numbers": ((right, left), (right_batch, left_batch)),
        "precision": precision and precision[::-1],
    }
    return product.replace(invars=product.invars[::-1], outvars=transpose.outvars, params=params)
