"""What `rx.data` has under other names."""

from __future__ import annotations

from replicax.data import ArraySpec as DatasetSpec
from replicax.data import DatasetIterator as Iterator

IteratorSpec = DatasetSpec
