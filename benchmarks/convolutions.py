"""Convolutions of known models on CPUs: the kernel beside XLA's own, by Eigen and by YNNPACK.

Each convolution is measured forward and in both gradients, the sides in turns, so that what else
the machine does meets all of them. The table has the median of wall time and of CPU time of a call
in milliseconds; below it stands where the kernel is slower than the better of XLA's two.

    python benchmarks/convolutions.py
    python benchmarks/convolutions.py --only resnet50,depthwise --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import replicax as rx
from replicax._cpu.programs import with_rules
from replicax._cpu.tuning import PARTS, choose

KINDS = ("forward", "input", "weights")
EIGEN = {
    "xla_cpu_experimental_ynn_fusion_type": (
        "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE"
    ),
}
LEAST = 0.01  # seconds that a measurement takes at least


class Shape(NamedTuple):
    """A convolution of a square kernel on square images."""

    model: str
    images: int
    size: int
    channels: int
    channels_out: int
    kernel: int
    stride: int = 1
    groups: int = 1
    transposed: bool = False

    def __str__(self) -> str:
        depth = f"{self.channels}→{self.channels_out}"
        ending = f" /{self.stride}" if self.stride > 1 else ""
        ending += f" g{self.groups}" if self.groups > 1 else ""
        ending += " transposed" if self.transposed else ""
        return (
            f"{self.model} {self.images}×{self.size}² {depth} {self.kernel}×{self.kernel}{ending}"
        )


def depthwise(
    model: str, images: int, size: int, channels: int, kernel: int, stride: int = 1
) -> Shape:
    return Shape(model, images, size, channels, channels, kernel, stride, channels)


SHAPES = (
    Shape("mobilenet", 16, 96, 3, 32, 3, 2),
    depthwise("mobilenet", 16, 48, 32, 3),
    Shape("mobilenet", 16, 48, 16, 96, 1),
    depthwise("mobilenet", 16, 48, 96, 3, 2),
    Shape("mobilenet", 16, 24, 96, 24, 1),
    Shape("mobilenet", 16, 24, 24, 144, 1),
    depthwise("mobilenet", 16, 24, 144, 3),
    depthwise("mobilenet", 16, 12, 192, 3),
    Shape("mobilenet", 16, 12, 192, 32, 1),
    depthwise("mobilenet", 16, 6, 384, 3),
    Shape("mobilenet", 16, 6, 384, 64, 1),
    depthwise("mobilenet", 16, 3, 960, 3),
    Shape("mobilenet", 16, 3, 160, 960, 1),
    Shape("mobilenet", 16, 3, 320, 1280, 1),
    depthwise("efficientnet", 16, 56, 144, 3),
    depthwise("efficientnet", 16, 56, 144, 5, 2),
    depthwise("efficientnet", 16, 14, 480, 5),
    depthwise("efficientnet", 16, 7, 1152, 5),
    Shape("efficientnet", 16, 1, 480, 20, 1),
    Shape("efficientnet", 16, 28, 40, 240, 1),
    Shape("resnet50", 16, 64, 3, 64, 7, 2),
    Shape("resnet50", 16, 16, 64, 64, 1),
    Shape("resnet50", 16, 16, 64, 64, 3),
    Shape("resnet50", 16, 16, 64, 256, 1),
    Shape("resnet50", 16, 16, 256, 128, 1, 2),
    Shape("resnet50", 16, 8, 128, 128, 3),
    Shape("resnet50", 16, 8, 128, 512, 1),
    Shape("resnet50", 16, 4, 256, 256, 3),
    Shape("resnet50", 16, 4, 1024, 256, 1),
    Shape("resnet50", 16, 2, 512, 512, 3),
    Shape("resnet50", 16, 2, 512, 2048, 1),
    Shape("resnet50 224", 4, 224, 3, 64, 7, 2),
    Shape("resnet50 224", 4, 56, 64, 64, 3),
    Shape("resnet50 224", 4, 7, 512, 512, 3),
    Shape("densenet", 16, 16, 128, 32, 3),
    Shape("densenet", 16, 8, 256, 128, 1),
    Shape("densenet", 16, 4, 512, 128, 1),
    Shape("unet", 4, 128, 3, 32, 3),
    Shape("unet", 4, 128, 64, 32, 3),
    Shape("unet", 4, 64, 64, 64, 3),
    Shape("unet", 4, 32, 128, 128, 3),
    Shape("unet", 4, 64, 64, 32, 2, 2, transposed=True),
    Shape("unet", 4, 128, 32, 2, 1),
    Shape("unet", 1, 256, 32, 32, 3),
    Shape("resnet20", 64, 32, 3, 16, 3),
    Shape("resnet20", 64, 32, 16, 16, 3),
    Shape("resnet20", 64, 32, 16, 32, 3, 2),
    Shape("resnet20", 64, 16, 32, 32, 3),
    Shape("resnet20", 64, 8, 64, 64, 3),
    Shape("cnn", 128, 32, 3, 32, 3),
    Shape("cnn", 128, 32, 32, 32, 3),
    Shape("cnn", 128, 16, 64, 64, 3),
    Shape("cnn", 128, 28, 1, 32, 3),
    Shape("dcgan", 64, 7, 128, 128, 5, 1, transposed=True),
    Shape("dcgan", 64, 7, 128, 64, 5, 2, transposed=True),
    Shape("dcgan", 64, 14, 64, 1, 5, 2, transposed=True),
    Shape("dcgan", 64, 28, 1, 64, 5, 2),
    Shape("dcgan", 64, 14, 64, 128, 5, 2),
    Shape("resnext", 16, 14, 128, 128, 3, 1, 32),
    Shape("resnext", 16, 14, 256, 256, 3, 1, 32),
)


def operation(shape: Shape, kind: str) -> tuple[Callable[..., jax.Array], tuple[jax.Array, ...]]:
    """What computes a convolution or a gradient, and its arguments."""
    names = ("NHWC", "HWIO", "NHWC")

    def forward(x: jax.Array, w: jax.Array) -> jax.Array:
        strides = (shape.stride,) * 2
        if shape.transposed:
            return lax.conv_transpose(x, w, strides, "SAME", dimension_numbers=names)
        return lax.conv_general_dilated(
            x, w, strides, "SAME", dimension_numbers=names, feature_group_count=shape.groups
        )

    draw = np.random.default_rng(0)
    x = draw.normal(size=(shape.images, shape.size, shape.size, shape.channels))
    w = draw.normal(size=(shape.kernel,) * 2 + (shape.channels // shape.groups, shape.channels_out))
    x, w = jnp.asarray(x, jnp.float32), jnp.asarray(w, jnp.float32)
    if kind == "forward":
        return forward, (x, w)
    given = jnp.ones(jax.eval_shape(forward, x, w).shape)
    if kind == "input":
        return lambda x, w, g: jax.vjp(lambda x: forward(x, w), x)[1](g)[0], (x, w, given)
    return lambda x, w, g: jax.vjp(lambda w: forward(x, w), w)[1](g)[0], (x, w, given)


def sides(shape: Shape, kind: str) -> dict[str, Callable[[], Any]]:
    """The same operation compiled three times."""

    def compiled(options: dict[str, str], *, kernel: bool) -> Callable[[], Any]:
        function, operands = operation(shape, kind)
        with choose(PARTS if kernel else PARTS - {"convolutions"}):
            program = (
                jax.jit(with_rules(function), compiler_options=options).lower(*operands).compile()
            )
        return lambda: jax.block_until_ready(program(*operands))

    return {
        "Eigen": compiled(EIGEN, kernel=False),
        "YNNPACK": compiled({}, kernel=False),
        "kernel": compiled(EIGEN, kernel=True),
    }


def timed(call: Callable[[], Any], times: int) -> tuple[float, float]:
    """Milliseconds of a call, by the clock and of all cores."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(times):
        call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return 1000 * wall / times, 1000 * cpu / times


def measured(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """The medians of both times of each side."""
    times = {}
    for name, call in calls.items():
        call()
        times[name] = max(1, int(LEAST / (timed(call, 1)[0] / 1000)))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            found[name].append(timed(call, times[name]))
    return {
        name: (statistics.median(w for w, _ in all_), statistics.median(c for _, c in all_))
        for name, all_ in found.items()
    }


def rows(only: str, rounds: int, kinds: list[str]) -> Iterator[tuple[Shape, str, dict[str, Any]]]:
    wanted = [name for name in only.split(",") if name]
    for shape in SHAPES:
        if wanted and not any(name in str(shape) for name in wanted):
            continue
        for kind in kinds:
            yield shape, kind, measured(sides(shape, kind), rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="NAME,…", help="parts of names of shapes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of forward,input,weights")
    parser.add_argument("--rounds", type=int, default=7, help="of each side (default 7)")
    options = parser.parse_args()
    rx.OneDeviceStrategy("/cpu:0")  # puts the rule in
    slower, gains = [], []
    print("| convolution | | Eigen wall/CPU | YNNPACK | kernel | best of XLA ÷ kernel, CPU |")
    print("|---|---|---|---|---|---|")
    for shape, kind, found in rows(options.only, options.rounds, options.kinds.split(",")):
        cells = " | ".join(f"{wall:.2f}/{cpu:.2f}" for wall, cpu in found.values())
        gain = min(found["Eigen"][1], found["YNNPACK"][1]) / found["kernel"][1]
        gains.append(gain)
        print(f"| {shape} | {kind} | {cells} | {gain:.2f} |", flush=True)
        if gain < 1:
            slower.append(f"{shape}, {kind}: {gain:.2f}")
    print(f"\nGeometric mean of the gains: {statistics.geometric_mean(gains):.2f}")
    print("Slower than XLA:", *(slower or ["none"]), sep="\n  ")


if __name__ == "__main__":
    main()
