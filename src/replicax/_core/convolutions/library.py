"""The kernel: oneDNN from its wheels, and kernel.c, compiled when it is first needed.

Nothing of this is required. Without the wheels nothing is said; if they are there and the kernel
cannot be made, one line says why, and convolutions stay with XLA.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

import jax

from replicax._core.env import folder_for_cache
from replicax._core.private_folder import private_folder

TARGET = "rx_convolution"
_SOURCE = Path(__file__).with_name("kernel.c")
_WHEELS = {"onednn-cpu-gomp": "libdnnl.so.3", "onednn-devel-cpu-gomp": "dnnl.h"}
_FLAGS = ("-std=gnu11", "-O3", "-shared", "-fPIC")
_SECONDS = 60.0

_log = logging.getLogger("replicax")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernel, which XLA then knows as `TARGET`; None where there is none."""
    installed = _onednn()
    if installed is None:
        return None
    try:
        loaded = ctypes.CDLL(str(_compiled(*installed)))
        jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(loaded.rx_convolution), "cpu")
    except (OSError, AttributeError, RuntimeError, subprocess.SubprocessError) as why:
        # RuntimeError: there is no home
        said = getattr(why, "stderr", None) or why
        _log.warning("Convolutions stay with XLA; no kernel that calls oneDNN: %s", said)
        return None
    return loaded


def _onednn() -> tuple[Path, Path] | None:
    """The library of oneDNN and the folder of its headers, if both wheels are installed."""
    found = []
    for wheel, name in _WHEELS.items():
        try:
            files = metadata.files(wheel) or ()
        except metadata.PackageNotFoundError:
            return None
        found += [Path(str(one.locate())).resolve() for one in files if one.name == name][:1]
    return (found[0], found[1].parent) if len(found) == len(_WHEELS) else None


def _compiled(onednn: Path, headers: Path) -> Path:
    """The file of the kernel, in the cache folder; compiled if it is not there yet."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), "cc")
    command = [
        *(compiler, *_FLAGS, str(_SOURCE), f"-I{jax.ffi.include_dir()}", f"-I{headers}"),
        *(str(onednn), "-l:libgomp.so.1", f"-Wl,-rpath,{onednn.parent}", "-pthread"),
    ]
    made_of = [_SOURCE.read_text(), jax.__version__, *command]
    made_of += [metadata.version(wheel) for wheel in _WHEELS]
    name = hashlib.sha256("\0".join(made_of).encode()).hexdigest()[:16]
    kept = private_folder(folder_for_cache() / "replicax", "kernels") / f"convolution-{name}.so"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            new = Path(folder, kept.name)
            subprocess.run(
                [*command, "-o", str(new)], check=True, capture_output=True, text=True,
                timeout=_SECONDS,
            )  # fmt: skip
            os.replace(new, kept)  # at once: another process may be looking
    return kept
