"""A sample of each of as many strips as there are points, along every axis."""

import numpy as np


def lhs(axes, points):
    random = np.random.default_rng(0)
    strips = np.stack([random.permutation(points) for _ in range(axes)], axis=1)
    return (strips + random.uniform(size=strips.shape)) / points
