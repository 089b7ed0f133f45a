"""What a compiled program is, in words that can be compared between processes.

Names, addresses and the order in which Python made things are left out: two processes that traced
the same code get the same words. (Whether replicas of one process agree is `_mesh/uneven.py`.)
"""

from __future__ import annotations

import hashlib
import itertools
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend
import numpy as np
from jax.core import Tracer

from replicax._control import current
from replicax._control.agreement import agree
from replicax._core.digests import checksum, uncounted
from replicax._core.errors import WorkersDiffer
from replicax._core.placement import is_spread

_SIMPLE = (int, float, complex, str, bytes, bool, type(None), np.dtype, np.generic)


def versions() -> dict[str, str]:
    """The versions and devices that must be the same on all workers."""
    devices = jax.local_devices()
    return {
        "Python": ".".join(map(str, sys.version_info[:2])),
        "JAX": jax.__version__,
        "device kind": devices[0].device_kind,
        "number of devices": str(len(devices)),
        "64-bit numbers": str(getattr(jax.config, "jax_enable_x64", None)),
        "matmul precision": str(getattr(jax.config, "jax_default_matmul_precision", None)),
    }


def program_facts(
    closed: Any, arguments: Any, variables: Sequence[tuple[str, Any]] = ()
) -> dict[str, str]:
    """Facts of a traced program, for a comparison; with the variables in the order of its own."""
    words = list(_words(closed))
    return {
        "variables": _digest([uncounted(path) for path, _ in variables]),
        **variable_facts(variables),
        "arguments": ", ".join(_aval(leaf) for leaf in jax.tree.leaves(arguments)),
        "operations": str(len(words)),
        "program": _digest(words),
    }


def variable_facts(variables: Sequence[tuple[str, Any]]) -> dict[str, str]:
    """A checksum of the value of each variable: copies of one variable must be equal."""
    return {
        f"value of {uncounted(path)} (variable {number})": checksum(value)
        for number, (path, value) in enumerate(variables)
    }


def agree_on_program(
    what: str, closed: Any, arguments: Any, variables: Sequence[tuple[str, Any]] = ()
) -> int:
    """Compare a traced program with those of all workers, before it runs for the first time.

    Returns a number of the program, the same on all workers; 0 of one worker. If they differ, every
    worker raises `WorkersDiffer`, with the first operation that is not the same.
    """
    channel = current()
    if channel.size == 1:
        return 0
    facts = program_facts(closed, arguments, variables)
    try:
        agree(what, facts)
    except WorkersDiffer:
        # All workers are here: they find out together where the programs part.
        words = [*_words(closed), "the end"]
        sums = channel.exchange("operations", [zlib.crc32(word.encode()) for word in words])
        first = _first_difference(sums)
        if first is not None:
            agree(what, {**facts, f"operation {first + 1}": words[min(first, len(words) - 1)]})
        raise
    return zlib.crc32(repr((what, facts)).encode())


def agree_on_shared(what: str, leaves: Sequence[Any]) -> None:
    """Compare arrays that every worker holds for itself and that are taken to be the same."""
    mine = [leaf for leaf in leaves if not isinstance(leaf, Tracer) and not is_spread(leaf)]
    if mine and current().size > 1:
        agree(what, {"shared arrays": f"{', '.join(map(_aval, mine))}, {checksum(mine)}"})


def _first_difference(columns: Sequence[Sequence[int]]) -> int | None:
    for place, row in enumerate(itertools.zip_longest(*columns)):
        if len(set(row)) > 1:
            return place
    return None


def _words(program: Any) -> Iterator[str]:
    """One for each constant and operation of a jaxpr, closed or not, and of those in it."""
    yield from (f"constant {_constant(value)}" for value in getattr(program, "consts", ()))
    jaxpr = getattr(program, "jaxpr", program)
    numbers = {var: i for i, var in enumerate([*jaxpr.constvars, *jaxpr.invars])}

    def name(atom: Any) -> str:
        """What a value is, and which: by the order in which the program makes them."""
        if isinstance(atom, jax.extend.core.Literal):
            return f"{atom.aval}={atom.val!r}"
        return f"{atom.aval}#{numbers.setdefault(atom, len(numbers))}"

    for equation in jaxpr.eqns:
        ins = " ".join(map(name, equation.invars))
        outs = " ".join(map(name, equation.outvars))
        yield f"{equation.primitive.name} {ins} -> {outs} {_params(equation.params)}"
        for inner in _inner(equation.params):
            yield from _words(inner)
    yield f"returns {' '.join(map(name, jaxpr.outvars))}"


def _params(params: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={_simple(value)}" for name, value in sorted(params.items()))


def _simple(value: Any) -> str:
    """A parameter as text, if it means the same in every process; else nothing."""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"({', '.join(_simple(item) for item in value)})"
    return ""


def _inner(params: Mapping[str, Any]) -> Iterator[Any]:
    for _, value in sorted(params.items()):
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, jax.extend.core.ClosedJaxpr | jax.extend.core.Jaxpr):
                yield item


def _constant(value: Any) -> str:
    concrete = isinstance(value, jax.Array | np.ndarray) and not isinstance(value, Tracer)
    return checksum(value) if concrete else str(jax.typeof(value))


def _aval(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]
