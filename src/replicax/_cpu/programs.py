"""Rules and XLA options that make Replicax' programs fast on CPUs."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.backend import get_compile_options
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from replicax._cpu import convolutions, elementwise, loops, pooling, products, tables
from replicax._cpu.lowering import own_name, rules, widens
from replicax._cpu.tuning import computes_with_one_thread, is_on

Exchange = Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]

# YNNPACK's convolutions are left out: they are two to four times slower than Eigen's.
_FUSIONS = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    ),
}
_ONE_THREAD = {"xla_cpu_multi_thread_eigen": False}


@functools.cache
def install() -> None:
    """Register the rules for operations of JAX. They apply to Replicax' programs only."""
    for module in (convolutions, loops, pooling, products, tables):
        module.install()


def with_rules(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Apply the rules to the operations of a function, for when it is compiled for CPUs.

    The function maps nests of arrays to a nest of arrays, and must not be differentiated later.
    """
    install()
    exchanges = (_with_sums_behind, _with_rules, elementwise.rounded_once, _unrounded)
    return rewritten(fn, *exchanges)


def _with_sums_behind(equations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    del results
    return [one for equation in equations for one in loops.sums_behind(equation)]


def _with_rules(equations: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    del results
    own = map(_with_rule, convolutions.rounding_inside(equations))
    return [one for equation in own for one in loops.moving_bits(equation)]


def _with_rule(equation: Any) -> Any:
    part, own = rules.get(equation.primitive, ("", None))
    return equation if own is None or not is_on(part) else equation.replace(primitive=own)


def _unrounded(equations: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """Let products and convolutions give `float32` where only a conversion from `bfloat16` follows.

    CPUs without instructions for pairs of `bfloat16` have their results so before they round them.
    """
    casts = {id(one.invars[0]): one for one in equations if widens(one)}
    if not casts:
        return equations
    uses = Counter(id(atom) for one in equations for atom in one.invars)
    uses.update(map(id, results))
    found, gone = [], set()
    for one in equations:
        cast = casts.get(id(one.outvars[0])) if one.primitive.name in _WITH_32_BITS else None
        if cast is None or uses[id(one.outvars[0])] > 1:
            found.append(one)
            continue
        if _WITH_32_BITS[one.primitive.name](one):
            gone.add(id(cast))
            params = {**one.params, "preferred_element_type": np.dtype(np.float32)}
            one = one.replace(outvars=cast.outvars, params=params)
        found.append(one)
    return [one for one in found if id(one) not in gone] if gone else equations


_WITH_32_BITS: Mapping[str, Callable[[Any], bool]] = {
    own_name(lax.dot_general_p): products.has_32_bits,
    **dict.fromkeys(convolutions.BY_KERNEL, convolutions.has_32_bits),
}


def rewritten(fn: Callable[..., Any], *exchanges: Exchange) -> Callable[..., Any]:
    """A function from nests of arrays to a nest of arrays, with other operations.

    Each of `exchanges` gets the equations and the results of a program, and gives the same
    equations or others. The programs in the parameters of an equation are rewritten before.
    """

    @functools.wraps(fn)
    def with_others(*args: Any) -> Any:
        closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*args)
        for exchange in exchanges:
            closed = exchanged(closed, exchange)
        results = jaxpr_as_fun(closed)(*jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), results)

    return with_others


def exchanged(closed: ClosedJaxpr, exchange: Exchange) -> ClosedJaxpr:
    """A program with the equations that `exchange` gives: see `rewritten`."""
    return _rewritten(closed, exchange, {})


def _rewritten(value: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    """A program, or the programs in a parameter of an operation.

    JAX lowers by object identity: an unchanged program stays the same object, and a program that
    occurs twice is replaced by one object.
    """
    if type(value) is tuple:
        return tuple(_rewritten(part, exchange, known) for part in value)
    if not isinstance(value, ClosedJaxpr | Jaxpr):
        return value
    if id(value) not in known:
        known[id(value)] = _of_program(value, exchange, known)
    return known[id(value)]


def _of_program(program: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    inner = getattr(program, "jaxpr", program)
    if inner is not program:  # JAX 0.10 has two classes: one with constants around one without
        jaxpr = _rewritten(inner, exchange, known)
        return program if jaxpr is inner else program.replace(jaxpr=jaxpr)
    own = [_of_equation(one, exchange, known) for one in program.eqns]
    equations = exchange(own, program.outvars)
    is_same = len(equations) == len(program.eqns) and all(
        map(operator.is_, equations, program.eqns)
    )
    return program if is_same else program.replace(eqns=list(equations))


def _of_equation(equation: Any, exchange: Exchange, known: dict[int, Any]) -> Any:
    changed = {
        name: new
        for name, value in equation.params.items()
        if (new := _rewritten(value, exchange, known)) is not value
    }
    return equation.replace(params={**equation.params, **changed}) if changed else equation


def options_for(devices: Collection[Any]) -> dict[str, Any]:
    """XLA's options for a program on these devices; options that this XLA lacks are left out."""
    options: dict[str, Any] = dict(_FUSIONS) if is_on("fusions") else {}
    here = sum(device.process_index == jax.process_index() for device in devices)
    if computes_with_one_thread(here):
        options.update(_ONE_THREAD)
    return {name: value for name, value in options.items() if name in _text_of_known_options()}


@functools.cache
def _text_of_known_options() -> str:
    """The text of all options of this XLA, which refuses unknown ones."""
    options = get_compile_options(num_replicas=1, num_partitions=1)
    return str(options.executable_build_options.debug_options)
