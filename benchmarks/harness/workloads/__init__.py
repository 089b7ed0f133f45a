"""What is trained: five models, each in Keras and written by hand in JAX, with the same weights.

`MODELS` has others, in Keras alone.
"""

from __future__ import annotations

from . import clicks, cnn, mlp, resnet, text
from ._models import MODELS
from ._workload import Batches, Weights, Workload

WORKLOADS = {
    workload.name: workload
    for workload in (mlp.WORKLOAD, cnn.WORKLOAD, resnet.WORKLOAD, text.WORKLOAD, clicks.WORKLOAD)
}
EVERY = WORKLOADS | MODELS

__all__ = ["EVERY", "MODELS", "WORKLOADS", "Batches", "Weights", "Workload"]
