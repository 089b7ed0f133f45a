"""The public switch of the tuning for CPUs; what it does is in `_cpu`."""

from __future__ import annotations

from typing import final

from replicax._cpu.tuning import choose_parts, parts_on


def cpu_tuning(
    enabled: bool | None = None,
    *,
    attention: bool | None = None,
    convolutions: bool | None = None,
    fusions: bool | None = None,
    memory: bool | None = None,
    optimizers: bool | None = None,
    pooling: bool | None = None,
    products: bool | None = None,
    tables: bool | None = None,
    threads: bool | None = None,
) -> CpuTuning:
    """Choose what Replicax changes in how JAX computes on CPUs. All of it is on by default.

    XLA is slow on CPUs at some operations. Where these were measured, Replicax lets JAX compute
    the same by other means. On GPUs and TPUs nothing changes. `RX_CPU_TUNING=0` in the environment
    is `cpu_tuning(False)`; docs/cpu.md has the measurements.

    It is asked when a program is compiled: what was compiled before stays. `memory` holds from the
    first strategy, or program for CPUs, to the end of the process.

    Args:
        enabled: Switches all parts on or off; None leaves those that are not named as they are.
        attention: Attention without copies of its weights, one for each pair of positions.
        convolutions: Convolutions and their gradients, each by one kernel.
        fusions: Options of XLA: which library computes what.
        memory: The C library keeps memory for the next step instead of giving it back, unless
            the environment has settings for it (`MALLOC_…`, `GLIBC_TUNABLES`).
        optimizers: Adam updates its variables in place, reading each array once.
        pooling: Pooling, sums over windows and their gradients, as slices of whole arrays.
        products: The gradients of weights, without a transposed copy of what they sum over.
        tables: Rows of tables looked up and added by a kernel, which is compiled once for all.
        threads: Processes that share a machine do not each use all of its cores.

    Returns:
        What is on. As a context manager it puts back, at the end, what was on before.

    Example:
        >>> import replicax as rx
        >>> with rx.config.cpu_tuning(False):
        ...     rx.config.cpu_tuning(pooling=True)
        CpuTuning('pooling')
    """
    named = {
        "attention": attention,
        "convolutions": convolutions,
        "fusions": fusions,
        "memory": memory,
        "optimizers": optimizers,
        "pooling": pooling,
        "products": products,
        "tables": tables,
        "threads": threads,
    }
    before = parts_on()
    wanted = {part: enabled if on is None else on for part, on in named.items()}
    on = {part for part, wish in wanted.items() if (part in before if wish is None else wish)}
    choose_parts(frozenset(on))
    return CpuTuning(frozenset(on), before)


@final
class CpuTuning:
    """Which parts of the tuning for CPUs are on.

    Args:
        parts: Their names.
        before: Those that were on before.

    Example:
        >>> import replicax as rx
        >>> "pooling" in rx.config.cpu_tuning().parts
        True
    """

    def __init__(self, parts: frozenset[str], before: frozenset[str]) -> None:
        self.parts = parts
        self._before = before

    def __repr__(self) -> str:
        return f"CpuTuning({', '.join(map(repr, sorted(self.parts)))})"

    def __enter__(self) -> CpuTuning:
        return self

    def __exit__(self, *exc: object) -> None:
        choose_parts(self._before)
