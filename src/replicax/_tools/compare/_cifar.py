"""The files of CIFAR-10 in both published versions; pickles are read without running code.

Python version: `data_batch_1` … `data_batch_5` and `test_batch`, each a pickled dict with `data`,
bytes of shape (n, 3072), and `labels`. Binary version: the same names with `.bin`, n records of
1 + 3072 bytes. The 3072 bytes are the red, the green and the blue plane of 32 × 32 pixels.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

import replicax as rx

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_Arrays = tuple[np.ndarray, np.ndarray]

_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_FOLDERS = (".", "cifar-10-batches-py", "cifar-10-batches-bin")  # what the archives unpack to
_IMAGE_BYTES = 3 * 32 * 32

# All that a pickle of arrays refers to, by the names of NumPy 1 and of NumPy 2.
_HARMLESS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    *((f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")),
    *((f"numpy.{core}.multiarray", "scalar") for core in ("core", "_core")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
}


def read_cifar10(folder: Path) -> tuple[_Arrays, _Arrays]:
    """Read the six files in `folder`, or in the folder inside it that the archive unpacks to.

    Returns:
        Training images and classes, test images and classes: bytes, shape (n, 32, 32, 3).

    Raises:
        replicax.errors.UsageError: If a file is missing or is not what its name says.
    """
    for place in (folder / name for name in _FOLDERS):
        for suffix, read in _READERS.items():
            if (place / f"test_batch{suffix}").is_file():
                return _read_batches(place, suffix, read)
    raise rx.errors.UsageError(
        "The folder must hold the files of CIFAR-10. "
        f"Received: {str(folder)!r}, {'without' if folder.is_dir() else 'not a folder, so no'} "
        "test_batch or test_batch.bin. "
        "They are looked for there and in cifar-10-batches-py and cifar-10-batches-bin inside. "
        "Unpack the Python or the binary version of CIFAR-10 and name the folder with its files."
    )


def _read_batches(
    folder: Path, suffix: str, read: Callable[[Path], _Arrays]
) -> tuple[_Arrays, _Arrays]:
    files = [folder / f"{name}{suffix}" for name in _BATCHES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise rx.errors.UsageError(
            "All six files of CIFAR-10 must be there. "
            f"Received: a folder without {', '.join(missing)}. "
            "Without them the model would be trained on other data than it says. "
            "Unpack the archive again, or copy the missing files."
        )
    *train, test = [read(file) for file in files]
    images, classes = zip(*train, strict=True)
    return (np.concatenate(images), np.concatenate(classes)), test


def _read_pickle(file: Path) -> _Arrays:
    with file.open("rb") as stream:
        try:
            batch: Any = _ArrayUnpickler(stream, encoding="latin1").load()
            batch = {k.decode() if isinstance(k, bytes) else k: v for k, v in batch.items()}
            rows, classes = np.asarray(batch["data"]), np.asarray(batch["labels"])
        except rx.errors.UsageError:
            raise
        except Exception as error:  # a broken pickle can raise anything
            raise rx.errors.UsageError(
                "A batch of CIFAR-10 must be a pickled dict with 'data' and 'labels'. "
                f"Received: {file.name}, which gives {type(error).__name__}: {error}. "
                "The file is damaged or something else. Unpack the archive again."
            ) from error
    return _checked(file, rows, classes)


def _read_binary(file: Path) -> _Arrays:
    content = np.fromfile(file, np.uint8)
    if content.size == 0 or content.size % (1 + _IMAGE_BYTES):
        raise rx.errors.UsageError(
            f"A binary batch of CIFAR-10 must be records of {1 + _IMAGE_BYTES} bytes. "
            f"Received: {file.name} with {content.size} bytes. "
            "The file is damaged or something else. Unpack the archive again."
        )
    records = content.reshape(-1, 1 + _IMAGE_BYTES)
    return _checked(file, records[:, 1:], records[:, 0])


def _checked(file: Path, rows: np.ndarray, classes: np.ndarray) -> _Arrays:
    """Turn rows of bytes into images, if they are what they should be."""
    fits = (
        rows.dtype == np.uint8
        and rows.shape == (*classes.shape, _IMAGE_BYTES)
        and np.issubdtype(classes.dtype, np.integer)
        and bool(np.all((classes >= 0) & (classes <= 9)))
    )
    if not fits:
        raise rx.errors.UsageError(
            f"CIFAR-10 must have rows of {_IMAGE_BYTES} bytes and a class from 0 to 9 for each. "
            f"Received: {file.name} with {rows.dtype} of shape {rows.shape} and classes of "
            f"shape {classes.shape}. "
            "The model is made for images of 32 x 32 x 3. Unpack the archive of CIFAR-10 again; "
            "CIFAR-100 is another data set."
        )
    return rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), classes


class _ArrayUnpickler(pickle.Unpickler):
    """Loads built-in containers, numbers, text and NumPy arrays; refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        """Called by `load` for every function or class that the pickle names."""
        if (module, name) not in _HARMLESS:
            raise rx.errors.UsageError(
                "A batch of CIFAR-10 may hold arrays and plain Python values only. "
                f"Received: a pickle that refers to {module}.{name}. "
                "Loading that could run any program. "
                "Use files from the makers of CIFAR-10, or the binary version."
            )
        return super().find_class(module, name)


_READERS = {"": _read_pickle, ".bin": _read_binary}
