"""Keeps what libtpu writes to the standard error, past Python, from the user.

Without a TPU it warns of what it would need to run programs. Here it only compiles.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Generator


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Drop what is written to the standard error in a `with` block, by native code, too."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as dropped:
            os.dup2(dropped.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
