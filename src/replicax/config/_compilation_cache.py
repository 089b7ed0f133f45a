"""The folder that keeps compiled programs for the next start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._core.machine.compilation_cache import choose

if TYPE_CHECKING:
    import os
    from pathlib import Path


def compilation_cache(folder: str | os.PathLike[str] | bool | None = None) -> Path | None:
    """Keep compiled programs on disk, so that the next start of a program compiles nothing.

    Without this call, programs are kept from the first strategy on, in the folder of
    `RX_COMPILATION_CACHE`, or else in `replicax` in the user's cache folder; `off` keeps none. The
    folder holds up to 1 GiB and 1000 programs; the least recently used are deleted first. Processes
    may share a folder. Only this call changes a `jax_compilation_cache_dir` that the user has set.

    Nobody else may be able to write to the folder, because the programs in it are executed.

    Args:
        folder: The folder. None for the folder without this call, or for the user's cache
            folder if `RX_COMPILATION_CACHE` is `off`. False for no folder.

    Returns:
        The folder with the programs for this kind of CPU, or None.

    Raises:
        UsageError: If this user cannot write there, or others can.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> rx.config.compilation_cache(tempfile.mkdtemp()).name.startswith("cpu-")
        True
        >>> rx.config.compilation_cache(False)
    """
    return choose(folder)
