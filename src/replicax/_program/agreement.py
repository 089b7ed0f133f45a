"""Whether all workers have the same programs and the same variables.

A program is compared as text without names, addresses and parameters that differ between
processes: two processes that traced the same code get the same text.

Workers that train together hold copies of every variable. A copy that only one worker changes stays
different, and nothing fails. So from time to time workers compare a checksum of all their copies,
computed on the devices. If it differs, checksums of single variables tell which.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax._core.channel import agree, current
from replicax._core.digests import checksum, without_numbers
from replicax._core.errors import WorkerLost, WorkersDiffer
from replicax._core.packing import groups
from replicax._core.placement import spans_processes
from replicax._program.jaxpr import shard_map

_SIMPLE = (int, float, complex, str, bytes, bool, type(None), np.dtype, np.generic)


def versions() -> dict[str, str]:
    """The versions and devices that must be equal on all workers."""
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
    """The facts of a traced program that workers compare; `variables` in the program's order."""
    words = list(_lines(closed))
    return {
        "variables": _digest([without_numbers(path) for path, _ in variables]),
        **{
            f"value of {without_numbers(path)} (variable {number})": checksum(value)
            for number, (path, value) in enumerate(variables)
        },
        "arguments": ", ".join(map(_shape, jax.tree.leaves(arguments))),
        "operations": str(len(words)),
        "program": _digest(words),
    }


def agree_on_program(
    what: str, closed: Any, arguments: Any, variables: Sequence[tuple[str, Any]] = ()
) -> int:
    """Compare a traced program between workers before its first run.

    Returns a checksum of the program, 0 for one worker. If the programs differ, every worker raises
    `WorkersDiffer` with the first operation that differs.
    """
    channel = current()
    if channel.size == 1:
        return 0
    facts = program_facts(closed, arguments, variables)
    try:
        agree(what, facts)
    except WorkersDiffer:
        # All workers raise this, so all compare operations next.
        words = [*_lines(closed), "the end"]
        sums = channel.exchange("operations", [zlib.crc32(word.encode()) for word in words])
        columns = enumerate(itertools.zip_longest(*sums))
        first = next((place for place, column in columns if len(set(column)) > 1), None)
        if first is not None:
            agree(what, {**facts, f"operation {first + 1}": words[min(first, len(words) - 1)]})
        raise
    return zlib.crc32(repr((what, facts)).encode())


def agree_on_shared(what: str, leaves: Sequence[Any]) -> None:
    """Compare arrays that every worker passes by itself and that must be equal."""
    mine = [leaf for leaf in leaves if not isinstance(leaf, Tracer) and not spans_processes(leaf)]
    if mine and current().size > 1:
        agree(what, {"shared arrays": f"{', '.join(map(_shape, mine))}, {checksum(mine)}"})


_RAISED = "errors of Python that a step calls"


def raise_on_all(compute: Callable[..., Any], *args: Any) -> Any:
    """Run a step with host callbacks; all workers raise if a callback raises on one."""
    channel = current()
    channel.barrier("a step that calls Python")  # a late worker is noticed here, not on devices
    try:
        results = compute(*args)
    except BaseException as error:
        # No wait: the other workers may still be computing.
        channel.offer(_RAISED, f"{type(error).__name__}: {error}")
        raise
    errors = channel.exchange(_RAISED, "")
    failed = {worker: error for worker, error in enumerate(errors) if error}
    if failed:
        worker, error = min(failed.items())
        raise WorkerLost(
            f"Python that this step calls has failed on worker {worker}: {error}. No worker has "
            "changed a variable. Correct that function. See docs/errors.md#workerlost.",
            tuple(failed),
        )
    return results


def _lines(program: Any) -> Iterator[str]:
    """A line for each constant and equation of a jaxpr, closed or open, and of inner jaxprs."""
    yield from (f"constant {_constant(value)}" for value in getattr(program, "consts", ()))
    jaxpr = getattr(program, "jaxpr", program)
    numbers = {var: i for i, var in enumerate([*jaxpr.constvars, *jaxpr.invars])}

    def name(atom: Any) -> str:
        """The aval of a value, and its number in the order of definition."""
        if isinstance(atom, jax.extend.core.Literal):
            return f"{atom.aval}={atom.val!r}"
        return f"{atom.aval}#{numbers.setdefault(atom, len(numbers))}"

    for equation in jaxpr.eqns:
        ins = " ".join(map(name, equation.invars))
        outs = " ".join(map(name, equation.outvars))
        params = (f"{key}={_simple(value)}" for key, value in sorted(equation.params.items()))
        yield f"{equation.primitive.name} {ins} -> {outs} {' '.join(params)}"
        for inner in _inner(equation.params):
            yield from _lines(inner)
    yield f"returns {' '.join(map(name, jaxpr.outvars))}"


def _simple(value: Any) -> str:
    """A parameter as text if it is equal in every process; else an empty text."""
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


def _shape(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


# The checksums of 450 arrays take 2.4 ms; a step with them takes 30 ms or more.
STEPS_PER_CHECK = 100
_GROUP = 64 << 20  # bytes per program; XLA:CPU needs as much memory again as its arguments
_STATE = "state"
_FIX = (
    "A callback, or code around the loop, has changed them on some of the workers. Change weights, "
    "learning rates, counters and seeds on all workers alike, and continue from the last "
    "checkpoint. See docs/multi_worker.md."
)

Pairs = Sequence[tuple[str, Any]]


@final
class StateCheck:
    """Compares the state of all workers at the first step and every `STEPS_PER_CHECK` steps.

    All workers call the same methods at the same points.
    """

    _count = -1

    def restart(self) -> None:
        """Compare at the next step."""
        self._count = -1

    def step(self, pairs: Callable[[], Pairs]) -> None:
        """Count a step that is about to begin; compare at every `STEPS_PER_CHECK`th.

        `pairs` gives paths and values of variables.
        """
        self._count += 1
        if self._count % STEPS_PER_CHECK == 0:
            self.compare(pairs())

    def compare(self, pairs: Pairs) -> None:
        """Compare the state now; waits for the previous step."""
        self._count = 0
        copies = [(without_numbers(path), value) for path, value in pairs if _is_copy(value)]
        values = [value for _, value in copies]
        rows = np.zeros((1, 0), np.uint32)
        if values:
            program = _program(values[0].sharding.mesh)
            several = groups(values, operator.attrgetter("nbytes"), _GROUP)
            found = [program(group).addressable_shards for group in several]
            rows = np.hstack([np.vstack([shard.data for shard in shards]) for shards in found])
        # `dtype.str`, because `dtype.name` takes 5 times as long: 3 ms for 450 variables.
        about = [(path, value.shape, value.dtype.str) for path, value in copies]
        start = zlib.crc32(str(about).encode())
        found = sorted({f"{zlib.crc32(row.tobytes(), start):08x}" for row in rows})
        # If devices of one worker differ, its text must differ from the other workers' texts.
        own = f" of worker {jax.process_index()}" if len(found) > 1 else ""
        try:
            agree(_STATE, {"checksum of all variables": ", ".join(found) + own}, fix=_FIX)
        except WorkersDiffer:
            agree(_STATE, _facts(copies, rows), fix=_FIX)  # all workers raised
            raise


def _is_copy(value: Any) -> bool:
    """Whether each device of all workers holds the whole array.

    Sharded arrays, such as a sharded optimizer's, have no copies to compare.
    """
    several = isinstance(value, jax.Array) and not value.is_fully_addressable
    return several and value.is_fully_replicated and isinstance(value.sharding, NamedSharding)


def _facts(copies: Pairs, rows: np.ndarray) -> dict[str, str]:
    """A fact per variable, scalars first: a learning rate changes all weights."""
    facts: dict[str, str] = {}
    for number in sorted(range(len(copies)), key=lambda number: copies[number][1].shape != ()):
        path, value = copies[number]
        texts = [_text(one, value) for one in dict.fromkeys(rows[:, number].tolist())]
        own = f" on the devices of worker {jax.process_index()}" if len(texts) > 1 else ""
        facts[f"value of {path} (variable {number})"] = " / ".join(texts) + own
    return facts


def _text(checksum: int, of: Any) -> str:
    if _is_shown(of):
        return str(np.array(checksum, np.uint32).view(of.dtype))
    return f"{_shape(of)}, checksum {checksum:08x}"


def _is_shown(value: Any) -> bool:
    """Whether the checksum of an array is its value."""
    return not value.shape and value.dtype in (np.float32, np.int32, np.uint32)


@functools.lru_cache(maxsize=8)
def _program(mesh: Mesh) -> Any:
    """A program from replicated arrays to a row of checksums for each device."""
    rows = PartitionSpec(mesh.axis_names)
    # `check_vma` would refuse what this looks for: copies that differ.
    return jax.jit(
        shard_map(
            lambda values: jnp.stack(list(map(_checksum, values)))[None],
            mesh=mesh,
            in_specs=PartitionSpec(),
            out_specs=rows,
            check_vma=False,
        )
    )


def _checksum(value: Any) -> Any:
    """A checksum of the bits of an array and their positions."""
    bits = _bits(value)
    if _is_shown(value):
        return bits
    bits = bits.reshape(-1)
    places = lax.iota(jnp.uint32, bits.size) * jnp.uint32(2654435761)
    mixed = (bits ^ (bits >> 15)) * (places | jnp.uint32(1))
    return jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32)


def _bits(value: Any) -> Any:
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = jnp.stack([value.real, value.imag])
    if jnp.issubdtype(value.dtype, jnp.floating):
        # The bits of a NaN depend on the order of additions.
        value = jnp.where(value != value, jnp.full((), jnp.nan, value.dtype), value)
    elif value.dtype == bool or jnp.iinfo(value.dtype).bits < 8:
        value = value.astype(jnp.int8)
    width = min(value.dtype.itemsize, 4)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
    return lax.bitcast_convert_type(value, unsigned).astype(jnp.uint32)
