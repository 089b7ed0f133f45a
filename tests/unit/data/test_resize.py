"""Resizing images as TensorFlow does it."""

import numpy as np
import pytest

from replicax.data._pixels import METHODS, resize

IMAGE = np.array([[0, 50, 100, 30], [150, 200, 250, 9], [77, 3, 255, 128]], np.uint8)
# tf.image.resize of TensorFlow 2.21 of IMAGE to (2, 5).
FROM_TENSORFLOW = {
    "bilinear": [[37.5, 72.5, 112.5, 103.68, 24.75], [95.25, 65.15, 153.0, 207.1, 98.25]],
    "nearest": [[0.0, 50.0, 100.0, 100.0, 30.0], [77.0, 3.0, 255.0, 255.0, 128.0]],
    "bicubic": [[27.79, 64.75, 115.42, 102.17, 18.88], [96.32, 42.6, 156.87, 229.83, 98.39]],
    "area": [[50.0, 87.5, 125.0, 118.25, 23.0], [101.33, 76.83, 161.0, 212.08, 88.33]],
    "lanczos3": [[29.68, 64.83, 132.53, 95.53, 11.74], [106.77, 37.89, 171.48, 237.33, 91.49]],
    "lanczos5": [[30.87, 64.36, 145.21, 88.24, 7.75], [114.8, 37.21, 182.46, 239.53, 89.01]],
    "gaussian": [[44.5, 76.63, 115.34, 104.0, 34.0], [93.25, 73.65, 154.82, 200.71, 109.11]],
    "mitchellcubic": [
        [37.21, 71.13, 117.44, 102.74, 25.04],
        [95.69, 59.18, 157.67, 214.59, 102.03],
    ],
}


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_tensorflows(method):
    # TensorFlow takes the weights of "bicubic" from a table of 1024 entries.
    tolerance = 0.2 if method == "bicubic" else 0.01
    found = resize(IMAGE[..., None], (2, 5), method)
    np.testing.assert_allclose(found[..., 0], FROM_TENSORFLOW[method], atol=tolerance)
    assert found.dtype == np.float32


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_channels_do_not_mix(method, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr("replicax.data._pixels.resized", lambda *_: None)
    channels = [IMAGE, IMAGE[::-1], 255 - IMAGE]
    together = resize(np.stack(channels, axis=2), (5, 3), method)
    for number, channel in enumerate(channels):
        alone = resize(channel[..., None], (5, 3), method)
        np.testing.assert_allclose(together[..., number], alone[..., 0], atol=1e-4)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"gaussian", "mitchellcubic"}))
def test_the_same_size_is_the_same_image(method):
    # Not so of the two that are left out: they blur.
    np.testing.assert_allclose(resize(IMAGE[..., None], (3, 4), method)[..., 0], IMAGE, atol=1e-4)
