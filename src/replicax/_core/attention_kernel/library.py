"""The kernel: kernel.c, compiled for this machine's cores when the first attention is traced.

Without a compiler nothing is said, and attention is computed by operations of JAX.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import jax

from replicax._core.env import folder_for_cache
from replicax._core.private_folder import private_folder

FORWARD, GRADIENT = "rx_attention", "rx_attention_gradient"
_SOURCE = Path(__file__).with_name("kernel.c")
_FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC", "-pthread")
_SECONDS = 60.0

_log = logging.getLogger("replicax")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `FORWARD` and `GRADIENT`."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None or platform.system() != "Linux":
        return False
    try:
        loaded = ctypes.CDLL(str(_compiled(compiler)))
        for name in (FORWARD, GRADIENT):
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(loaded, name)), "cpu")
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as why:
        # RuntimeError: there is no home
        _log.info("Attention is without its kernel: %s", getattr(why, "stderr", None) or why)
        return False
    return True


def _compiled(compiler: str) -> Path:
    """The file of the kernel, in the cache folder; compiled if it is not there yet."""
    command = [compiler, *_FLAGS, str(_SOURCE), f"-I{jax.ffi.include_dir()}"]
    made_of = [_SOURCE.read_text(), jax.__version__, _instructions(), *command]
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    kept = private_folder(folder_for_cache() / "replicax", "kernels") / f"attention-{name}.so"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            new = Path(folder, kept.name)
            subprocess.run(
                [*command, "-o", str(new)], check=True, capture_output=True, text=True,
                timeout=_SECONDS,
            )  # fmt: skip
            os.replace(new, kept)  # at once: another process may be looking
    return kept


def _instructions() -> str:
    """What this machine's cores can do: another machine may share the cache folder."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = ("model name", "flags", "Features")
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(names)))
