"""Where a program for a TPU runs if there is none; `_tpu.py` says whether there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replicax._core.errors import ClusterSpecError

# For programs that are to stay as they are; an argument wins.
TPU_FALLBACK = "RX_TPU_FALLBACK"
_KINDS = ("gpu", "cpu")


def fallback_of(fallback: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds of devices to fall back to, in order: the program's, else the environment's."""
    received = f"fallback={fallback!r}"
    kinds = (fallback,) if isinstance(fallback, str) else tuple(fallback)
    if not kinds and variables.get(TPU_FALLBACK):
        received = f"{TPU_FALLBACK}={variables[TPU_FALLBACK]!r}"
        kinds = tuple(kind.strip() for kind in variables[TPU_FALLBACK].split(","))
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise ClusterSpecError(
            "Without a TPU a program falls back to GPUs or CPUs. "
            f"Received: {received}. There is no kind of devices {unknown[0]!r}. "
            'Write fallback=("gpu", "cpu"), or one of them.'
        )
    return kinds
