"""Folders whose files run as the user's own code: nobody else may write there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_OTHERS_WRITE = 0o022


def private_folder(folder: Path, name: str) -> Path:
    """A folder in another one, where this user alone can write; both are made if not there.

    Raises:
        PermissionError: If one of the two is another user's, or others can write to it.
    """
    inside = folder / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    for one in (folder, inside):
        one.mkdir(exist_ok=True, mode=0o700)
        about = one.stat()
        if hasattr(os, "getuid") and (about.st_uid != os.getuid() or about.st_mode & _OTHERS_WRITE):
            raise PermissionError(f"other users can write to {one}, and so run code as this one")
    return inside
