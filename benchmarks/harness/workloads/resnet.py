"""ResNet-20 with batch normalization, for CIFAR-10 (He et al. 2015, arXiv:1512.03385, §4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ._workload import Weights, Workload
from .cnn import CLASSES, SHAPE, draw

EPSILON, MOMENTUM = 1e-3, 0.99  # Keras'


def blocks() -> Iterator[tuple[str, int, int, int]]:
    """Name, inputs, filters and stride of each block."""
    inputs = 16
    for filters in (16, 32, 64):
        for number in range(3):
            yield f"block{filters}_{number}", inputs, filters, 1 if inputs == filters else 2
            inputs = filters


def weights() -> Weights:
    found = Weights()

    def add(name: str, size: int, inputs: int, filters: int) -> None:
        found.convolution(f"{name}_conv", size, inputs, filters, bias=False)
        found.normalization(f"{name}_norm", filters, statistics=True)

    add("first", 3, 3, 16)
    for name, inputs, filters, stride in blocks():
        add(f"{name}_a", 3, inputs, filters)
        add(f"{name}_b", 3, filters, filters)
        if stride == 2:
            add(f"{name}_shortcut", 1, inputs, filters)
    found.dense("head", 64, CLASSES)
    return found


def model(keras: Any, layers: Any) -> Any:
    def add(name: str, x: Any, filters: int, size: int = 3, stride: int = 1) -> Any:
        convolution = layers.Conv2D(
            filters, size, stride, padding="same", use_bias=False, name=f"{name}_conv"
        )
        return layers.BatchNormalization(name=f"{name}_norm")(convolution(x))

    inputs = keras.Input(SHAPE)
    x = layers.ReLU()(add("first", inputs, 16))
    for name, _, filters, stride in blocks():
        y = layers.ReLU()(add(f"{name}_a", x, filters, stride=stride))
        y = add(f"{name}_b", y, filters)
        x = add(f"{name}_shortcut", x, filters, 1, 2) if stride == 2 else x
        x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))


def forward(weights: dict, statistics: dict, x: Any, axis: str | None) -> tuple[Any, dict]:
    import jax
    from jax import lax

    layout, found = ("NHWC", "HWIO", "NHWC"), {}

    def add(name: str, x: Any, stride: int = 1) -> Any:
        (kernel,) = weights[f"{name}_conv"]
        x = lax.conv_general_dilated(x, kernel, (stride,) * 2, "SAME", dimension_numbers=layout)
        scale, offset = weights[f"{name}_norm"]
        moments = x.mean((0, 1, 2)), (x * x).mean((0, 1, 2))
        mean, square = lax.pmean(moments, axis) if axis else moments
        variance = square - mean * mean
        found[f"{name}_norm"] = [
            MOMENTUM * old + (1 - MOMENTUM) * new
            for old, new in zip(statistics[f"{name}_norm"], (mean, variance), strict=True)
        ]
        return (x - mean) * (lax.rsqrt(variance + EPSILON) * scale) + offset

    x = jax.nn.relu(add("first", x))
    for name, _, _, stride in blocks():
        y = add(f"{name}_b", jax.nn.relu(add(f"{name}_a", x, stride)))
        x = add(f"{name}_shortcut", x, 2) if stride == 2 else x
        x = jax.nn.relu(x + y)
    kernel, bias = weights["head"]
    return x.mean((1, 2)) @ kernel + bias, found


WORKLOAD = Workload(
    "resnet",
    "ResNet-20",
    64,
    3,
    draw,
    weights,
    model,
    forward,
    "SGD",
    {"learning_rate": 0.02, "momentum": 0.9},
)
