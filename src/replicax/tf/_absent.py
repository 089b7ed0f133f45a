"""What Replicax lacks, what means something else, what steps cannot compute: `absent.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path

from replicax.tf._names import OTHERS_IN_V1

_TABLES = tomllib.loads(Path(__file__).with_name("absent.toml").read_text("utf-8"))
_IN_V1 = {f"tf.compat.v1{name[2:]}": advice for name, advice in OTHERS_IN_V1.items()}
ABSENT: dict[str, str] = dict(sorted((_TABLES["absent"] | _IN_V1).items()))
CHANGES: dict[str, str] = _TABLES["changes"]
STEPS: dict[str, str] = _TABLES["steps"]


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ABSENT[prefix] for prefix in prefixes if prefix in ABSENT), None)
