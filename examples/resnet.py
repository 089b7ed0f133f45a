"""A small residual network, on which docs/tools.md shows `replicax plan`. It trains in seconds.

    python examples/resnet.py --strategy mirrored
    replicax plan examples/resnet.py --tpu v5e:4x4 --strategies mirrored,zero1 --batch 1024

The pictures are random, so it learns nothing. A larger one: --width 64 --size 224 --stages 4.
"""

from __future__ import annotations

import argparse

import replicax as rx

STRATEGIES = ("one_device", "mirrored")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strategy", choices=STRATEGIES, default="mirrored")
    parser.add_argument("--width", type=int, default=8, help="filters of the first stage")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--size", type=int, default=16, help="height and width of a picture")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=4)
    return parser.parse_args()


def build(arguments: argparse.Namespace):
    """Convolutions in pairs, each pair with a shortcut around it."""
    from keras import Input, Model, layers

    def convolution(x, filters, stride=1):
        x = layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)
        return layers.BatchNormalization()(x)

    images = Input((arguments.size, arguments.size, 3))
    x = layers.ReLU()(convolution(images, arguments.width))
    for stage in range(arguments.stages):
        filters, stride = arguments.width * 2**stage, 1 if stage == 0 else 2
        shortcut = layers.Conv2D(filters, 1, stride)(x) if stage else x
        y = layers.ReLU()(convolution(x, filters, stride))
        x = layers.ReLU()(layers.Add()([shortcut, convolution(y, filters)]))
    return Model(images, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)), name="resnet")


def main() -> None:
    arguments = parse_arguments()
    import keras
    import numpy as np

    one = arguments.strategy == "one_device"
    strategy = rx.OneDeviceStrategy("CPU:0") if one else rx.MirroredStrategy()
    with strategy.scope():
        model = build(arguments)
        model.compile(
            keras.optimizers.Adam(1e-3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    rows = arguments.batch_size * arguments.steps
    random = np.random.default_rng(0)
    images = random.random((rows, arguments.size, arguments.size, 3), "float32")
    classes = random.integers(0, 10, rows)
    history = model.fit(images, classes, batch_size=arguments.batch_size, epochs=1, verbose=0)
    print(f"{strategy}: loss {history.history['loss'][-1]:.3f}")


if __name__ == "__main__":
    main()
