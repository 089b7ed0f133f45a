"""The public switch of the tuning for CPUs, which is in `_cpu`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._cpu.tuning import PARTS, choose

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def cpu_tuning(enabled: bool) -> AbstractContextManager[object]:
    """Switch the tuning for CPUs on or off. It is on by default.

    XLA computes some operations slowly on CPUs. Replicax replaces those that it has measured, with
    the same results. Nothing changes on GPUs and TPUs. `RX_CPU_TUNING=0` in the environment is the
    same as `cpu_tuning(False)`; docs/cpu.md has the parts and the measurements.

    The switch applies to programs that are compiled later. One part is not switched back: from the
    first strategy or program for CPUs to the end of the process, the C library keeps freed memory
    for the next step.

    Args:
        enabled: Whether the tuning is on.

    Returns:
        A context manager that restores the former setting at its end.

    Example:
        >>> import replicax as rx
        >>> with rx.config.cpu_tuning(False):
        ...     double = rx.function(lambda x: 2 * x)
        ...     print(double(4.0))  # compiled by plain JAX
        8.0
    """
    return choose(PARTS if enabled else ())
