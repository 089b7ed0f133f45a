"""`tf.print`: printing from compiled code, each replica by name."""

from __future__ import annotations

__all__: list[str] = []
