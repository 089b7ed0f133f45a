"""`tf.print`: printing from compiled code, each replica by name. See `_core/printing.py`."""

from __future__ import annotations

from replicax._core.printing import print as print

__all__ = ["print"]
