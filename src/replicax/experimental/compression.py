"""Compression of gradients for a slow network; see docs/multi_worker.md."""

from replicax._core.compression import BFloat16 as BFloat16
from replicax._core.compression import Int8 as Int8
