"""`tf.test`: test cases that compare arrays."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf._test import TestCase as TestCase
from replicax.tf._test import gpu_device_name as gpu_device_name
from replicax.tf._test import is_built_with_cuda as is_built_with_cuda
from replicax.tf._test import is_built_with_gpu_support as is_built_with_gpu_support
from replicax.tf._test import is_built_with_rocm as is_built_with_rocm
from replicax.tf._test import is_built_with_xla as is_built_with_xla
from replicax.tf._test import is_gpu_available as is_gpu_available
from replicax.tf._test import main as main


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
