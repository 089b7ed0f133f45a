"""Boxes and measures of `tf.image` against NumPy, and values that are known of TensorFlow."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

i = tf.image
RNG = np.random.default_rng(0)
# Of TensorFlow's own tests: three clusters of boxes, one of them written upside down.
BOXES = np.array(
    [[0, 0, 1, 1], [1, 1.1, 0, 0.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1],
     [0, 100, 1, 101]], "float32"
)  # fmt: skip
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3], "float32")


def same(found, expected):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-5, atol=2e-5)


def test_boxes_that_overlap_a_better_one_are_left_out():
    assert i.non_max_suppression(BOXES, SCORES, 3).tolist() == [3, 0, 5]
    assert i.non_max_suppression(BOXES, SCORES, 2).tolist() == [3, 0]
    assert i.non_max_suppression(BOXES, SCORES, 30, score_threshold=0.4).tolist() == [3, 0]
    assert i.non_max_suppression(np.zeros((0, 4)), np.zeros(0), 3).tolist() == []
    compiled = rx.function(lambda b, s: i.non_max_suppression_padded(b, s, 5))
    places, count = compiled(BOXES, SCORES)
    assert places.tolist() == [3, 0, 5, 0, 0] and int(count) == 3
    places, count = i.non_max_suppression_padded(BOXES[None], SCORES[None], 2)
    assert places.tolist() == [[3, 0]] and count.tolist() == [2]


def test_soft_suppression_lowers_scores_as_tensorflow_does():
    args = (BOXES, SCORES, 6, 1.0, 0.0, 0.5)
    places, scores = i.non_max_suppression_with_scores(*args)
    assert places.tolist() == [3, 0, 1, 5, 4, 2]
    np.testing.assert_allclose(scores, [0.95, 0.9, 0.384, 0.3, 0.256, 0.197], atol=1e-3)


def test_combined_suppression_chooses_for_each_class():
    boxes = np.clip(BOXES, 0, 2)[None, :, None]
    scores = np.stack([SCORES, SCORES[::-1] / 2], axis=-1)[None]
    found = i.combined_non_max_suppression(
        BOXES[None, :, None], scores, 3, 4, score_threshold=0.2, clip_boxes=False
    )
    same(found.nmsed_scores, [[0.95, 0.9, 0.475, 0.45]])
    assert found.nmsed_classes.tolist() == [[0, 0, 1, 1]]
    assert found.valid_detections.tolist() == [4]
    few = i.combined_non_max_suppression(boxes, scores, 3, 4, score_threshold=0.93)
    same(few.nmsed_scores, [[0.95, 0, 0, 0]])
    assert few.valid_detections.tolist() == [1]
    assert float(np.max(few.nmsed_boxes)) <= 1


def test_boxes_are_cut_out_and_resized():
    image = np.array([[1, 2], [3, 4]], "float32")[None, :, :, None]
    whole = i.crop_and_resize(image, [[0, 0, 1, 1.0]], [0], [3, 3])
    same(whole[0, :, :, 0], [[1, 1.5, 2], [2, 2.5, 3], [3, 3.5, 4]])
    same(i.crop_and_resize(image, [[1, 1, 0, 0.0]], [0], [2, 2])[0, :, :, 0], [[4, 3], [2, 1]])
    same(i.crop_and_resize(image, [[0, 0, 1, 1.0]], [0], [1, 1])[0, :, :, 0], [[2.5]])
    outside = i.crop_and_resize(image, [[-1, -1, 1, 1.0]], [0], [3, 3], extrapolation_value=-1)
    same(outside[0, :, :, 0], [[-1, -1, -1], [-1, 1, 2], [-1, 3, 4]])
    nearest = i.crop_and_resize(image, [[0, 0, 1, 1.0]], [0], [4, 4], method="nearest")
    same(nearest[0, :, :, 0], np.repeat(np.repeat([[1, 2], [3, 4]], 2, 0), 2, 1))


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_boxes_are_drawn_by_their_edges(make):
    found = i.draw_bounding_boxes(
        make(np.zeros([1, 5, 5, 3], "float32")), np.array([[[0, 0.25, 1, 1]]]), [[1.0, 0, 0, 1]]
    )
    expected = np.zeros([5, 5])
    expected[:, 1:] = 1
    expected[1:4, 2:4] = 0
    same(found[0, :, :, 0], expected)
    assert not np.any(np.asarray(found[..., 1:]))


def test_sampled_windows_are_of_the_ratio_and_area_and_cover_an_object():
    box = np.array([[[0.2, 0.2, 0.8, 0.8]]], "float32")
    for seed in range(20):
        begin, size, window = i.stateless_sample_distorted_bounding_box(
            [60, 90, 3], box, [seed, 1], 0.5, (0.5, 2.0), (0.2, 0.9)
        )
        (top, left, _), (height, width, rest) = begin.tolist(), size.tolist()
        assert rest == -1 and top + height <= 60 and left + width <= 90
        assert 0.2 <= height * width / 5400 <= 0.9 and 0.45 <= width / height <= 2.1
        y, x, bottom, right = np.asarray(window)[0, 0].tolist()
        same([y * 60, x * 90, bottom * 60, right * 90], [top, left, top + height, left + width])
        shared = (min(bottom, 0.8) - max(y, 0.2)) * (min(right, 0.8) - max(x, 0.2))
        assert shared >= 0.5 * 0.36 - 1e-5
    begin, size, _ = i.sample_distorted_bounding_box(
        [6, 9, 3], np.zeros([0, 4]), area_range=(2.0, 3.0), use_image_if_no_bounding_boxes=True
    )
    assert begin.tolist() == [0, 0, 0] and size.tolist() == [6, 9, -1]
    with pytest.raises(rx.errors.UsageError):
        i.sample_distorted_bounding_box([6, 9, 3], np.zeros([0, 4]))


def test_differences_of_images():
    a, b = RNG.uniform(size=(2, 2, 16, 15, 3)).astype("float32")
    same(i.psnr(a, b, 1.0), -10 * np.log10(((a - b) ** 2).mean((1, 2, 3))))
    whole = [(one * 255).astype("uint8") for one in (a, b)]
    errors = ((whole[0] / 255.0 - whole[1] / 255.0) ** 2).mean((1, 2, 3))
    same(i.psnr(*whole, 255), -10 * np.log10(errors))
    same(i.ssim(a, a, 1.0), [1, 1])
    # A window of one weight: means, variances and the covariance of each patch.
    patches = [np.lib.stride_tricks.sliding_window_view(one, (4, 4), (1, 2)) for one in (a, b)]
    (mx, my), (vx, vy) = ([p.mean((-2, -1)) for p in patches], [p.var((-2, -1)) for p in patches])
    covariance = (patches[0] * patches[1]).mean((-2, -1)) - mx * my
    c1, c2 = 0.01**2, 0.03**2
    expected = (2 * mx * my + c1) * (2 * covariance + c2) / (mx**2 + my**2 + c1) / (vx + vy + c2)
    found = i.ssim(a, b, 1.0, filter_size=4, filter_sigma=1e4)
    np.testing.assert_allclose(found, expected.mean((1, 2, 3)), rtol=1e-3)
    assert i.ssim(a, b, 1.0, 4, return_index_map=True).shape == (2, 13, 12)
    same(i.ssim_multiscale(a, a, 1.0, (0.5, 0.5), filter_size=4), [1, 1])
    near = 0.8 * a  # so that no channel is below 0, which counts as 0
    same(i.ssim_multiscale(a, near, 1.0, (1.0,), 4), i.ssim(a, near, 1.0, 4))


def test_changes_from_pixel_to_pixel():
    x = np.arange(12, dtype="float32").reshape(1, 3, 4, 1)
    assert i.total_variation(x).tolist() == [8 * 4 + 9]
    down, across = i.image_gradients(x)
    same(down[0, :, :, 0], [[4] * 4, [4] * 4, [0] * 4])
    same(across[0, :, :, 0], [[1, 1, 1, 0]] * 3)
    edges = i.sobel_edges(x)
    assert edges.shape == (1, 3, 4, 1, 2)
    same(edges[0, 1, 1, 0], [32, 8])
    same(edges[0, 0, 1, 0], [0, 8])


def test_patches_are_rows_of_rows_of_pixels():
    x = np.arange(2 * 4 * 5 * 2, dtype="float32").reshape(2, 4, 5, 2)
    found = np.asarray(i.extract_patches(x, [1, 2, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"))
    assert found.shape == (2, 2, 2, 12)
    same(found[1, 1, 1], x[1, 2:4, 2:5].ravel())
    spread = i.extract_patches(x, [1, 2, 2, 1], [1, 1, 1, 1], [1, 2, 2, 1], "VALID")
    same(spread[0, 0, 0], x[0, 0:3:2, 0:3:2].ravel())


def test_other_colors_come_back():
    x = RNG.uniform(size=(3, 4, 3)).astype("float32")
    same(i.rgb_to_yuv(x)[..., 0], x @ [0.299, 0.587, 0.114])
    np.testing.assert_allclose(i.yuv_to_rgb(i.rgb_to_yuv(x)), x, atol=1e-4)
    np.testing.assert_allclose(i.yiq_to_rgb(i.rgb_to_yiq(jnp.asarray(x))), x, atol=1e-4)


def test_quality_of_a_jpeg():
    x = RNG.integers(0, 255, (16, 16, 3)).astype("uint8")
    good, bad = (np.asarray(i.adjust_jpeg_quality(x, q)).astype(int) for q in (95, 5))
    assert abs(good - x).mean() < abs(bad - x).mean()
    assert i.random_jpeg_quality(x / np.float32(255), 20, 30).dtype == "float32"
    one, other = (i.stateless_random_jpeg_quality(x, 20, 90, [1, 2]) for _ in range(2))
    same(one, other)
