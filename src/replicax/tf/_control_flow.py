"""`cond`, `while_loop`, `range`, `map_fn`: control flow on values of compiled code."""

from __future__ import annotations

__all__: list[str] = []
