"""The models in sizes that use a GPU, in float32, TF32 and bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _models, cnn, mlp, resnet, text
from ._models import MODELS

if TYPE_CHECKING:
    from ._workload import Workload

TYPES = {  # the policy of Keras, whether TF32 is used, and by which losses may differ
    "float32": ("float32", False, 1e-2),
    "tf32": ("float32", True, 2e-2),
    "bfloat16": ("mixed_bfloat16", False, 1e-1),  # of deep models that are normalized by batch
}
CHECKED = 4  # steps; later ones differ by what rounding has grown to
DRAWN = 8  # batches, which come again

Rows = tuple[Any, np.ndarray]


def repeated(draw: Any, distinct: int, rows: int, random: np.random.Generator) -> Rows:
    """So many rows, of which some are the same: random numbers take longer than copies."""
    inputs, labels = draw(min(rows, distinct), random)

    def all_of(array: np.ndarray) -> np.ndarray:
        return np.resize(array, (rows, *array.shape[1:]))

    if isinstance(inputs, dict):
        return {name: all_of(array) for name, array in inputs.items()}, all_of(labels)
    return all_of(inputs), all_of(labels)


def _images(name: str, title: str, model: Any, size: int, draw: Any = _models.images) -> Workload:
    made, drawn = functools.partial(model, size), functools.partial(draw, size)
    return replace(MODELS[name], title=title, model=made, draw=drawn)


def _applied(name: str, title: str, size: int) -> Workload:
    model = functools.partial(_models.of_keras, title.replace("-", ""))
    return _images(name, f"{title}, {size}²", model, size)


def _gpt(title: str, vocabulary: int, length: int, **sizes: int) -> Workload:
    model = functools.partial(_models.gpt, vocabulary=vocabulary, length=length, **sizes)
    drawn = functools.partial(_models.tokens, vocabulary=vocabulary, length=length)
    return replace(MODELS["gpt"], title=title, model=model, draw=drawn)


# Batch, steps of a round (0.3 to 1 s on an H100), and GB of a GPU that a side takes in float32.
_SIZES = {
    "resnet50": (_applied("resnet50", "ResNet-50", 224), 64, 20, 10),
    "mlp": (mlp.WORKLOAD, 1024, 400, 1.5),
    "gpt100m": (
        _gpt("GPT, 110 M", 16_384, 512, width=768, heads=12, blocks=12),
        *(8, 40, 12),
    ),
    "dlrm": (MODELS["dlrm"], 8192, 200, 1.5),
    "mobilenet": (_applied("mobilenet", "MobileNetV2", 224), 64, 30, 5),
    "text": (text.WORKLOAD, 256, 150, 2),
    "gpt10m": (_gpt("GPT, 10 M", 8192, 256, blocks=8), 32, 80, 5.5),
    "unet": (_images("unet", "U-Net, 128²", _models.unet, 128, _models.masks), 32, 50, 2.5),
    "cnn": (cnn.WORKLOAD, 1024, 120, 3),
    "dcgan": (
        _images("dcgan", "DCGAN's layers, 64²", _models.strided, 64, _models.masks),
        *(128, 100, 2),
    ),
    "resnet20": (resnet.WORKLOAD, 512, 80, 2.5),
}
MEMORY = {name: size[-1] for name, size in _SIZES.items()}


def _in_types() -> Iterator[tuple[str, Workload]]:
    for name, (workload, batch, steps, _) in _SIZES.items():
        for types, (precision, tf32, tolerance) in TYPES.items():
            told = {"precision": precision, "tf32": tf32, "tolerance": tolerance}
            told |= {"batch_size": batch, "steps": steps, "checked": CHECKED}
            told["draw"] = functools.partial(repeated, workload.draw, DRAWN * batch)
            yield f"{name}-{types}", replace(workload, name=f"{name}-{types}", **told)


ON_GPU = dict(_in_types())
