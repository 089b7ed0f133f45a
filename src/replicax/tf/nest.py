"""`tf.nest`: lists, tuples and dicts of values."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf._nest import assert_same_structure as assert_same_structure
from replicax.tf._nest import flatten as flatten
from replicax.tf._nest import is_nested as is_nested
from replicax.tf._nest import map_structure as map_structure
from replicax.tf._nest import pack_sequence_as as pack_sequence_as


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
