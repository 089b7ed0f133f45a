"""The kernel: oneDNN from its wheels, and kernel.c, compiled when it is first needed.

Nothing of this is required. Without the wheels nothing is said; if they are there and the kernel
cannot be made, one line says why, and convolutions stay with XLA.
"""

from __future__ import annotations

import functools
import logging
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from replicax._core.handlers.building import NoHandlerError, load

if TYPE_CHECKING:
    import ctypes

TARGET = "rx_convolution"
_SOURCE = Path(__file__).with_name("kernel.c")
_WHEELS = {"onednn-cpu-gomp": "libdnnl.so.3", "onednn-devel-cpu-gomp": "dnnl.h"}

_log = logging.getLogger("replicax")


@functools.cache
def library() -> ctypes.CDLL | None:
    """The kernel, which XLA then knows as `TARGET`; None where there is none."""
    installed = _onednn()
    if installed is None:
        return None
    onednn, headers = installed
    try:
        flags = (f"-I{headers}", str(onednn), "-l:libgomp.so.1", f"-Wl,-rpath,{onednn.parent}")
        versions = map(metadata.version, _WHEELS)
        return load("convolution", _SOURCE, *flags, targets=[TARGET], made_of=versions)
    except NoHandlerError as why:
        _log.warning("Convolutions stay with XLA; no kernel that calls oneDNN: %s", why)
        return None


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
