"""Where compiled programs are kept for the next start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._core.compilation_cache import choose

if TYPE_CHECKING:
    import os
    from pathlib import Path


def compilation_cache(folder: str | os.PathLike[str] | bool | None = None) -> Path | None:
    """Keep compiled programs on disk, so that the next start of a program compiles nothing.

    They are kept without this call, too, from the first strategy on: in the folder that
    `RX_COMPILATION_CACHE` names, or in `replicax` in the user's cache folder; `off` keeps none. Up
    to 1 GiB and 1000 programs; what was not used for longest goes first. Processes may share a
    folder. A user's own `jax_compilation_cache_dir` is left alone, unless this is called.

    Only you may be able to write to the folder: what is in it is run.

    Args:
        folder: The folder; None for the one that is used without this call, or the user's cache
            folder where `RX_COMPILATION_CACHE` is `off`; False for none.

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
