"""A checkpoint's files where a URL leads: object stores, by fsspec.

An object is there whole or not at all, and cannot be renamed. So the files of arrays come first,
under names of their own, and `checkpoint.json` last: with it the checkpoint is there.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, BinaryIO

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

# The names of `_files.file_of`.
_OF_ARRAYS = re.compile(r"arrays(-[0-9a-f]{8})?(-\d+)?\.bin")


def is_of_arrays(name: str) -> bool:
    """Whether a checkpoint may have written a file of this name."""
    return bool(_OF_ARRAYS.fullmatch(name))


class Bucket:
    def __init__(self, url: str) -> None:
        self._url = url
        try:
            import fsspec

            self._system, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"Cannot open {url!r} with fsspec: {error}. Run `pip install fsspec` and install "
                "the driver of this store, such as gcsfs for gs:// or s3fs for s3://. See "
                "docs/fault_tolerance.md."
            ) from error
        self._root: str = root.rstrip("/")

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _entries(self) -> list[dict[str, Any]]:
        self._system.invalidate_cache()  # other processes write, too
        try:
            return self._system.ls(self._root, detail=True)
        except FileNotFoundError:
            return []

    def names(self) -> list[str]:
        """The names below the URL, of folders, too."""
        return [os.path.basename(entry["name"].rstrip("/")) for entry in self._entries()]

    def sizes(self) -> dict[str, int]:
        return {
            os.path.basename(entry["name"]): entry["size"]
            for entry in self._entries()
            if entry["type"] == "file"
        }

    def read(self, name: str) -> bytes:
        return self._system.cat_file(self._at(name))

    def open(self, name: str) -> int:
        # A copy on this machine's disk, as parts of arrays are read twice: to be checked, and used.
        descriptor, path = tempfile.mkstemp(prefix="replicax-")
        os.close(descriptor)
        try:
            self._system.get_file(self._at(name), path)
            return os.open(path, os.O_RDONLY)
        finally:
            os.unlink(path)

    def create(self, name: str) -> AbstractContextManager[BinaryIO]:
        try:
            return self._system.open(self._at(name), "wb")
        except FileNotFoundError:  # a file system, such as sftp's, which has folders
            self._system.makedirs(self._root, exist_ok=True)
            return self._system.open(self._at(name), "wb")

    def changed_at(self, name: str) -> float:
        return self._system.modified(self._at(name)).timestamp()

    def refuse_others(self, marks: Collection[str]) -> None:
        """Refuse a folder with objects, none of which has a name of `marks` or is of ours."""
        names = self.names()
        if names and not any(name in marks or is_of_arrays(name) for name in names):
            raise UsageError(
                f"Something else is at {self._url!r}: {', '.join(sorted(names)[:3])}. A checkpoint "
                "would be mixed with it. Name a new folder, or remove what is there."
            )

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self._system.rm_file(self._at(name))

    def remove_all(self, first: str | None = None) -> None:
        """Remove everything below the URL; the file `first` before the others."""
        if first is not None and first in self.sizes():
            self._system.rm_file(self._at(first))
        if self._system.exists(self._root):
            self._system.rm(self._root, recursive=True)
