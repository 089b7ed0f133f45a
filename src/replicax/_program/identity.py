"""Whether all workers have the same programs, and the same state.

A program is compared in words. Names, addresses and the order in which Python made things are left
out: two processes that traced the same code get the same words.

Workers that train together hold copies of every variable. A copy that is changed on one worker
only stays different, and nothing fails. So now and then each worker compares a checksum of all its
copies, made on the devices, with the others; if one differs, checksums of the single variables tell
which. (Whether replicas of one process agree is `_mesh/uneven.py`.)
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
from replicax._core.digests import checksum, uncounted
from replicax._core.errors import WorkerLost, WorkersDiffer
from replicax._core.packing import groups
from replicax._core.placement import is_spread
from replicax._program.jaxpr import shard_map

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
    """What workers compare of a traced program; `variables` are in the program's order."""
    words = list(_words(closed))
    return {
        "variables": _digest([uncounted(path) for path, _ in variables]),
        **{
            f"value of {uncounted(path)} (variable {number})": checksum(value)
            for number, (path, value) in enumerate(variables)
        },
        "arguments": ", ".join(_aval(leaf) for leaf in jax.tree.leaves(arguments)),
        "operations": str(len(words)),
        "program": _digest(words),
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
        columns = enumerate(itertools.zip_longest(*sums))
        first = next((place for place, column in columns if len(set(column)) > 1), None)
        if first is not None:
            agree(what, {**facts, f"operation {first + 1}": words[min(first, len(words) - 1)]})
        raise
    return zlib.crc32(repr((what, facts)).encode())


def agree_on_shared(what: str, leaves: Sequence[Any]) -> None:
    """Compare arrays that every worker holds for itself and that are taken to be the same."""
    mine = [leaf for leaf in leaves if not isinstance(leaf, Tracer) and not is_spread(leaf)]
    if mine and current().size > 1:
        agree(what, {"shared arrays": f"{', '.join(map(_aval, mine))}, {checksum(mine)}"})


_RAISED = "errors of Python that a step calls"


def together(compute: Callable[..., Any], *args: Any) -> Any:
    """The results of a step that calls Python; all workers raise if that raises on one."""
    channel = current()
    channel.barrier("a step that calls Python")  # who is late shows here, not on the devices
    try:
        results = compute(*args)
    except BaseException as error:
        # Not waited for: the others are still on the devices if these have failed here alone.
        channel.offer(_RAISED, f"{type(error).__name__}: {error}")
        raise
    told = channel.exchange(_RAISED, "")
    failed = [worker for worker, said in enumerate(told) if said]
    if failed:
        raise WorkerLost(
            f"Python that this step calls has failed on worker {failed[0]}: {told[failed[0]]}. No "
            "worker has changed a variable. Correct that function. See docs/errors.md#workerlost.",
            tuple(failed),
        )
    return results


def _words(program: Any) -> Iterator[str]:
    """A text for each constant and operation of a jaxpr, closed or open, and of inner jaxprs."""
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
        params = (f"{key}={_simple(value)}" for key, value in sorted(equation.params.items()))
        yield f"{equation.primitive.name} {ins} -> {outs} {' '.join(params)}"
        for inner in _inner(equation.params):
            yield from _words(inner)
    yield f"returns {' '.join(map(name, jaxpr.outvars))}"


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


# Steps. The checksums of 450 arrays take 2.4 ms where a step with them takes 30 ms and more.
EVERY = 100
_GROUP = 64 << 20  # bytes; XLA:CPU needs as much memory again as a program is given
_STATE = "state"
_FIX = (
    "A callback, or code around the loop, has changed them on some of the workers. Change weights, "
    "learning rates, counters and seeds on all workers alike, and continue from the last "
    "checkpoint. See docs/multi_worker.md."
)

Pairs = Sequence[tuple[str, Any]]


@final
class StateWatch:
    """Compares the state of all workers at the first step it is told of, and every `EVERY` steps.

    All workers call the same methods at the same points.
    """

    def __init__(self) -> None:
        self._count = -1

    def restart(self) -> None:
        """Compare at the next step, too."""
        self._count = -1

    def step(self, pairs: Callable[[], Pairs]) -> None:
        """Count a step that is about to begin, and compare if its turn has come.

        `pairs` gives paths and values of variables. A change is found within `EVERY` steps.
        """
        self._count += 1
        if self._count % EVERY == 0:
            self.compare(pairs())

    def compare(self, pairs: Pairs) -> None:
        """Compare the state now, which waits for the step before."""
        self._count = 0
        copies = [(uncounted(path), value) for path, value in pairs if _is_copy(value)]
        values = [value for _, value in copies]
        rows = np.zeros((1, 0), np.uint32)
        if values:
            program = _program(values[0].sharding.mesh)
            several = groups(values, operator.attrgetter("nbytes"), _GROUP)
            found = [program(group).addressable_shards for group in several]
            rows = np.hstack([np.vstack([shard.data for shard in shards]) for shards in found])
        # Names of types instead of `str` would take 5 times as long: 3 ms for 450 variables.
        about = [(path, value.shape, value.dtype.str) for path, value in copies]
        start = zlib.crc32(str(about).encode())
        found = sorted({f"{zlib.crc32(row.tobytes(), start):08x}" for row in rows})
        # Devices of one worker that differ must not be alike on all workers.
        own = f" of worker {jax.process_index()}" if len(found) > 1 else ""
        try:
            agree(_STATE, {"checksum of all variables": ", ".join(found) + own}, fix=_FIX)
        except WorkersDiffer:
            agree(_STATE, _facts(copies, rows), fix=_FIX)  # all workers are here
            raise


def _is_copy(value: Any) -> bool:
    """Whether each device of all workers has the whole of an array.

    Others have rows of their own, such as those of a divided optimizer, or of a variable that is
    combined when it is read. Nobody else has these, so there is nothing to compare.
    """
    several = isinstance(value, jax.Array) and not value.is_fully_addressable
    return several and value.is_fully_replicated and isinstance(value.sharding, NamedSharding)


def _facts(copies: Pairs, rows: np.ndarray) -> dict[str, str]:
    """Each variable by itself, single numbers first: a learning rate changes all weights."""
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
    return f"{of.dtype}{list(of.shape)}, checksum {checksum:08x}"


def _is_shown(value: Any) -> bool:
    """Whether the checksum of an array is its value."""
    return not value.shape and value.dtype in (np.float32, np.int32, np.uint32)


@functools.lru_cache(maxsize=8)
def _program(mesh: Mesh) -> Any:
    """From arrays that all devices have copies of to a row of checksums for each device."""
    rows = PartitionSpec(mesh.axis_names)
    # Not checked: copies that differ are what is looked for.
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
    """The bits of an array as one number, which depends on the place of each."""
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
        # The bits of a NaN depend on the order of what was added up.
        value = jnp.where(value != value, jnp.full((), jnp.nan, value.dtype), value)
    elif value.dtype == bool or jnp.iinfo(value.dtype).bits < 8:
        value = value.astype(jnp.int8)
    width = min(value.dtype.itemsize, 4)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[width]
    return lax.bitcast_convert_type(value, unsigned).astype(jnp.uint32)
