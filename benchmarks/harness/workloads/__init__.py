"""What is trained: five models, each in Keras and written by hand in JAX, with the same weights.

`MODELS` has others, in Keras alone; `ON_GPU` has some of both, in sizes for a GPU.
"""

from __future__ import annotations

from . import clicks, cnn, mlp, resnet, text
from ._models import MODELS
from ._on_gpu import MEMORY, ON_GPU
from ._workload import Batches, Weights, Workload

WORKLOADS = {
    workload.name: workload
    for workload in (mlp.WORKLOAD, cnn.WORKLOAD, resnet.WORKLOAD, text.WORKLOAD, clicks.WORKLOAD)
}
EVERY = WORKLOADS | MODELS | ON_GPU

__all__ = ["EVERY", "MEMORY", "MODELS", "ON_GPU", "WORKLOADS", "Batches", "Weights", "Workload"]
