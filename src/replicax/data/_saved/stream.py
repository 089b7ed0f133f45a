"""A NumPy file that is written before its length is known."""

from __future__ import annotations

import gzip
import os
import shutil
import struct
from typing import BinaryIO, final

import numpy as np

HEADER = 4096  # bytes before the values of a file: a page, for alignment

_BUFFER = 2**20


def stored(dtype: np.dtype) -> np.dtype:
    """The type that stores values of this type in a file and that every NumPy knows."""
    return np.dtype(f"<u{dtype.itemsize}") if dtype.kind == "V" else dtype


@final
class NumpyStream:
    """A `.npy` file that grows; its header is written last, when the shape is known."""

    def __init__(self, path: str, dtype: np.dtype) -> None:
        self.path = path
        self._dtype = dtype
        self._file: BinaryIO = open(path, "wb", buffering=_BUFFER)  # noqa: SIM115
        self._file.write(bytes(HEADER))

    def write(self, array: np.ndarray) -> None:
        """Add values."""
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, shape: tuple[int | None, ...]) -> None:
        """Write the header and close the file."""
        text = repr({"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        prefix = b"\x93NUMPY\x02\x00" + struct.pack("<I", HEADER - 12)
        self._file.seek(0)
        self._file.write(prefix + text.encode().ljust(HEADER - 13) + b"\n")
        self._file.close()

    def compress(self) -> None:
        """Replace the file by a compressed one."""
        plain, self.path = self.path, f"{self.path}.gz"
        with (
            open(plain, "rb") as source,
            open(self.path, "wb") as file,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as target,
        ):
            shutil.copyfileobj(source, target, _BUFFER)
        os.remove(plain)

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()
