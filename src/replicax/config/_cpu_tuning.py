"""The public switch of the tuning for CPUs; what it does is in `_cpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._cpu.tuning import PARTS, choose

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def cpu_tuning(enabled: bool) -> AbstractContextManager[object]:
    """Switch on or off what Replicax changes in how JAX computes on CPUs. It is on by default.

    XLA is slow on CPUs at some operations. Where these were measured, Replicax lets JAX compute
    the same by other means. On GPUs and TPUs nothing changes. `RX_CPU_TUNING=0` in the environment
    is `cpu_tuning(False)`; docs/cpu.md has the parts, and the measurements.

    It is asked when a program is compiled: what was compiled before stays. Memory that the C
    library keeps for the next step is kept from the first strategy, or program for CPUs, to the end
    of the process.

    Args:
        enabled: Whether it is on.

    Returns:
        A context manager. At its end, what was on before the call is on again.

    Example:
        >>> import replicax as rx
        >>> with rx.config.cpu_tuning(False):
        ...     double = rx.function(lambda x: 2 * x)
        ...     print(double(4.0))  # compiled as JAX comes
        8.0
    """
    return choose(PARTS if enabled else ())
