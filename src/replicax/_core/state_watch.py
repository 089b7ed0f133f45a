"""Whether all workers still have the same state: checksums of all variables, made on the devices.

Workers that train together hold copies of every variable. A copy that is changed on one worker
only stays different, and nothing fails. So now and then each worker compares a checksum of all its
copies with the others; if one differs, checksums of the single variables tell which.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax._control.agreement import Agreement, agree
from replicax._core.errors import WorkersDiffer
from replicax._core.program import uncounted

# Steps. The checksums of 450 arrays take 2.4 ms where a step with them takes 30 ms and more.
EVERY = 100
# Steps after the checksums were begun: by then they are computed, and nobody waits for them.
_TOLD, _REQUIRED = 8, 16
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
        self._begun: _Checksums | None = None

    def restart(self) -> None:
        """Compare at the next step, too."""
        self._count = -1

    def step(self, pairs: Callable[[], Pairs]) -> None:
        """Count a step that is about to begin, and perhaps compare; this waits for nobody.

        Args:
            pairs: Called if needed: the paths and values of the variables.

        Raises:
            WorkersDiffer: On every worker, up to `EVERY` + 16 steps after the change.
        """
        self._count += 1
        phase = self._count % EVERY
        if phase == 0:
            self._finish()
            self._begun = self._checksums(pairs())
        elif self._begun is not None and phase == _TOLD:
            self._begun.tell()
        elif phase == _REQUIRED:
            self._finish()

    def compare(self, pairs: Pairs) -> None:
        """Compare the state now.

        Args:
            pairs: The paths and values of the variables.

        Raises:
            WorkersDiffer: On every worker, with the variables that differ.
        """
        self._finish()
        self._checksums(pairs).require()
        self._count = 0

    def drop(self) -> None:
        """Forget a comparison that is under way, after a failure."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.withdraw()

    def _finish(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.require()

    def _checksums(self, pairs: Pairs) -> _Checksums:
        copies = [(uncounted(path), value) for path, value in pairs if _is_copy(value)]
        values = [value for _, value in copies]
        if not values:
            return _Checksums((), None)
        return _Checksums(copies, _program(values[0].sharding.mesh)(values))


@final
class _Checksums:
    """Checksums that devices compute.

    Args:
        copies: The paths and values of the variables.
        sums: Of each device and variable; None if there are no variables.
    """

    def __init__(self, copies: Pairs, sums: Any) -> None:
        self._about = [(path, value.shape, value.dtype) for path, value in copies]
        self._sums = sums
        self._rows = np.zeros((1, 0), np.uint32)
        self._agreement: Agreement | None = None

    def tell(self) -> None:
        """Tell the others one checksum of all."""
        if self._sums is not None:
            shards = self._sums.addressable_shards
            self._rows = np.concatenate([np.asarray(shard.data) for shard in shards])
        # To spell the names of the types takes 5 times as long: 3 ms for 450 variables.
        about = [(path, shape, dtype.str) for path, shape, dtype in self._about]
        start = zlib.crc32(str(about).encode())
        found = sorted({f"{zlib.crc32(row.tobytes(), start):08x}" for row in self._rows})
        # Devices of one worker that differ must not be alike on all workers.
        own = f" of worker {jax.process_index()}" if len(found) > 1 else ""
        facts = {"checksum of all variables": ", ".join(found) + own}
        self._agreement = Agreement(_STATE, facts, fix=_FIX)

    def require(self) -> None:
        """Compare with the others.

        Raises:
            WorkersDiffer: On every worker, with the variables that differ.
        """
        if self._agreement is None:
            self.tell()
        assert self._agreement is not None
        try:
            self._agreement.require()
        except WorkersDiffer:
            agree(_STATE, self._facts(), fix=_FIX)  # all workers are here
            raise

    def withdraw(self) -> None:
        """Say that the comparison does not matter any more."""
        if self._agreement is not None:
            self._agreement.withdraw()

    def _facts(self) -> dict[str, str]:
        """Each variable by itself, single numbers first: a learning rate changes all weights."""
        facts: dict[str, tuple[bool, str]] = {}
        for number, (path, shape, dtype) in enumerate(self._about):
            column = self._rows[:, number]
            texts = [_text(one, shape, dtype) for one in dict.fromkeys(column.tolist())]
            own = f" on the devices of worker {jax.process_index()}" if len(texts) > 1 else ""
            name = f"value of {path} (variable {number})"
            facts[name] = shape != (), " / ".join(texts) + own
        return {name: text for name, (_, text) in sorted(facts.items(), key=lambda f: f[1][0])}


def _is_copy(value: Any) -> bool:
    """Whether each device of all workers has the whole of an array.

    Others have rows of their own, such as those of a divided optimizer, or of a variable that is
    combined when it is read. Nobody else has these, so there is nothing to compare.
    """
    several = isinstance(value, jax.Array) and not value.is_fully_addressable
    return several and value.is_fully_replicated and isinstance(value.sharding, NamedSharding)


def _text(checksum: int, shape: Sequence[int], dtype: Any) -> str:
    if _is_shown(shape, dtype):
        return str(np.array(checksum, np.uint32).view(dtype))
    return f"{dtype}{list(shape)}, checksum {checksum:08x}"


def _is_shown(shape: Sequence[int], dtype: Any) -> bool:
    """Whether the checksum of an array is its value."""
    return not shape and dtype in (np.float32, np.int32, np.uint32)


@functools.lru_cache(maxsize=8)
def _program(mesh: Mesh) -> Any:
    """From arrays that all devices have copies of to a row of checksums for each device."""

    def checksums(values: Sequence[Any]) -> Any:
        return jnp.stack(list(map(_checksum, values)))[None]

    rows = PartitionSpec(mesh.axis_names)
    # Not checked: copies that differ are what is looked for.
    return jax.jit(
        jax.shard_map(
            checksums, mesh=mesh, in_specs=PartitionSpec(), out_specs=rows, check_vma=False
        )
    )


def _checksum(value: Any) -> Any:
    """The bits of an array as one number, which depends on the place of each."""
    bits = _bits(value)
    if _is_shown(value.shape, value.dtype):
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
