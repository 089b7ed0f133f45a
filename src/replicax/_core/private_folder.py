"""Folders whose files run as the user's own code: nobody else may write there.

The rule is ssh's, for every folder up to the root: it is this user's or root's, and others cannot
write to it unless it is sticky, as `/tmp` is.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class InsecureFolder(PermissionError):
    """Raised for a folder where others could put code that runs as this user.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"other users can write to {path}, and so run code as this one. Run `chmod go-w {path}`"
            " if it is yours."
        )
        self.path = path


def private_folder(folder: Path, name: str) -> Path:
    """A folder in another one, which this user alone can enter; both are made if not there.

    Raises:
        InsecureFolder: If others can write to one of the two or, by a folder above, replace it.
    """
    if not hasattr(os, "getuid"):  # Windows has other rights
        (folder / name).mkdir(parents=True, exist_ok=True)
        return folder / name
    inside = Path(os.path.abspath(folder / name))
    # `parents=True` would let the umask choose the mode of those above.
    for above in reversed(inside.parents):
        if not above.exists():
            above.mkdir(exist_ok=True, mode=0o700)
    inside.mkdir(exist_ok=True, mode=0o700)
    for one in (inside.parent, inside):
        about = one.stat()
        if about.st_uid != os.getuid() or about.st_mode & _OTHERS_WRITE:
            raise InsecureFolder(one)
    real = inside.resolve()
    for above in dict.fromkeys([*inside.parents, *real.parents]):  # also of links on the way
        about = above.stat()
        is_open = about.st_mode & _OTHERS_WRITE and not about.st_mode & stat.S_ISVTX
        if about.st_uid not in (0, os.getuid()) or is_open:
            raise InsecureFolder(above)
    if inside.stat().st_mode & _OTHERS:
        _close(inside)
    return inside


def _close(folder: Path) -> None:
    """Let nobody else in, and remove the files that others can have written."""
    for path in folder.iterdir():
        about = path.lstat()
        if not stat.S_ISDIR(about.st_mode) and (
            about.st_uid != os.getuid() or about.st_mode & _OTHERS_WRITE
        ):
            path.unlink()
    folder.chmod(0o700)
