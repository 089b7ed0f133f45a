"""The library of C kernels, loaded when a program first needs a kernel.

The build makes a library for each level of CPU instructions. The best library that this CPU can run
is loaded, and its handlers are registered with XLA. Without one, XLA computes everything.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from pathlib import Path
from typing import Any

import jax

ADAM = "rx_adam"
ATTENTION, ATTENTION_GRADIENT = "rx_attention", "rx_attention_gradient"
CONVOLUTION = "rx_convolution"
ROW_PRODUCTS = "rx_row_products"
LOOK_UP, ADD_ROWS = "rx_look_up", "rx_add_rows"
ADD_SUMS, FIRST_ROWS = "rx_add_sums", "rx_first_rows"
TARGETS = (
    ADAM,
    ATTENTION,
    ATTENTION_GRADIENT,
    CONVOLUTION,
    ROW_PRODUCTS,
    LOOK_UP,
    ADD_ROWS,
    ADD_SUMS,
    FIRST_ROWS,
)

# Linux' names of the instructions of each level, best level first. scripts/kernels.py builds them.
_V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
LEVELS = {
    "x86-64-v4": _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]),
    "x86-64-v3": _V3,
    "aarch64": frozenset({"asimd"}),
}
_HERE = Path(__file__).parent
FOLDER = _HERE / "built"  # of the libraries
SOURCES = sorted(_HERE.glob("src/*"))
_CPU_INFO = Path("/proc/cpuinfo")
_log = logging.getLogger("replicax")


class NoKernelsError(Exception):
    """No kernels can be used; the text is the reason, in one line."""


@functools.cache
def are_there() -> bool:
    """Whether the kernels are registered with XLA; if not, the first call logs why."""
    try:
        load()
    except NoKernelsError as why:
        _log.info("Kernels for CPUs are off: %s. `replicax doctor` shows the fix.", why)
        return False
    return True


def load(folder: Path = FOLDER) -> str:
    """Load the best library for this CPU, and register its handlers with XLA; returns its level.

    Raises `NoKernelsError` if no library works.
    """
    best = _best(folder)
    try:
        library = _library(best, folder)
        for target in TARGETS:
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(library[target]), "cpu")
    except (OSError, AttributeError, RuntimeError) as error:
        raise NoKernelsError(f"the library for {best} cannot be loaded: {error}") from error
    return best


def _library(level: str, folder: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(folder / f"{level}.so"))


@functools.cache
def function(name: str, *arguments: Any) -> Any:
    """A function of the library that is not an XLA handler; None without the library.

    `arguments` are its `ctypes` types.
    """
    try:
        found = _library(_best(FOLDER), FOLDER)[name]
    except (NoKernelsError, OSError, AttributeError):
        return None
    found.argtypes, found.restype = arguments, ctypes.c_int64
    return found


def multiplies_pairs() -> bool:
    """Whether the kernels of this CPU multiply pairs of `bfloat16` by its own instructions."""
    asked = function("rx_multiplies_pairs")
    return asked is not None and bool(asked())


def multiplies_tiles() -> bool:
    """Whether the kernels multiply such pairs by tiles (AMX), several times as fast."""
    asked = function("rx_multiplies_tiles")
    return asked is not None and bool(asked())


def _best(folder: Path) -> str:
    built = [name for name in LEVELS if (folder / f"{name}.so").exists()]
    if not built:
        note = folder / "not_built.txt"
        why = note.read_text(encoding="utf-8").strip() if note.exists() else "they were not built"
        raise NoKernelsError(why)
    has = _instructions()
    for name in built:
        if LEVELS[name] <= has:
            return name
    raise NoKernelsError(f"this CPU lacks instructions of {built[-1]}")


@functools.cache
def _instructions() -> frozenset[str]:
    """The instructions of this CPU, from Linux; with several kinds of cores, those of the first."""
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    named = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(named, "").split())
