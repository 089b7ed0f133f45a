"""`tf.image`: random changes and errors; its numbers are in tests/parity/test_images.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

IMAGE = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
BATCH = np.stack([IMAGE] * 16)


def on_host(change, image=IMAGE):
    (found,) = rx.data.Dataset.from_tensors(image).map(change)
    return found


def test_flips():
    assert tf.image.flip_left_right(IMAGE).tolist() == IMAGE[:, ::-1].tolist()
    assert tf.image.flip_up_down(jnp.asarray(BATCH)).tolist() == BATCH[:, ::-1].tolist()
    assert tf.image.transpose(IMAGE).shape == (4, 2, 3)


@pytest.mark.parametrize("name", ["left_right", "up_down"])
@pytest.mark.parametrize("where", ["host", "device"])
def test_random_flips_are_of_each_image(name, where):
    tf.random.set_seed(1)
    flip = getattr(tf.image, f"random_flip_{name}")
    found = on_host(flip, BATCH) if where == "host" else flip(jnp.asarray(BATCH))
    assert isinstance(found, np.ndarray if where == "host" else jax.Array)
    flipped = IMAGE[:, ::-1] if name == "left_right" else IMAGE[::-1]
    kinds = {str(np.asarray(one).tolist()) for one in found}
    assert kinds == {str(IMAGE.tolist()), str(flipped.tolist())}


def test_stateless_changes_follow_from_the_seed():
    i = tf.image
    for change in (
        lambda x: i.stateless_random_flip_left_right(x, (1, 2)),
        lambda x: i.stateless_random_flip_up_down(x, (1, 2)),
        lambda x: i.stateless_random_crop(x, (1, 2, 3), (1, 2)),
        lambda x: i.stateless_random_brightness(x, 0.2, (1, 2)),
        lambda x: i.stateless_random_contrast(x, 0.5, 2.0, (1, 2)),
        lambda x: i.stateless_random_saturation(x, 0.5, 2.0, (1, 2)),
        lambda x: i.stateless_random_hue(x, 0.2, (1, 2)),
    ):
        one = change(jnp.asarray(IMAGE))
        assert one.dtype == np.uint8 and np.array_equal(one, change(jnp.asarray(IMAGE)))
        assert on_host(change).shape == one.shape


@pytest.mark.parametrize("where", ["host", "device"])
def test_random_crops_are_windows(where):
    def crop(image):
        return tf.image.random_crop(image, (1, 2, 3))

    windows = {str(IMAGE[y : y + 1, x : x + 2].tolist()) for y in range(2) for x in range(3)}
    found = {
        str(np.asarray(on_host(crop) if where == "host" else crop(jnp.asarray(IMAGE))).tolist())
        for _ in range(60)
    }
    assert found == windows


def test_random_colors_stay_in_their_range():
    floats = (IMAGE / 24).astype("float32")
    found = on_host(lambda x: tf.image.random_brightness(x, 0.25, seed=3), floats)
    assert 0 < abs(float(found[0, 0, 0] - floats[0, 0, 0])) <= 0.25
    for change in (
        lambda x: tf.image.random_contrast(x, 0.5, 2.0),
        lambda x: tf.image.random_saturation(x, 0.5, 2.0),
        lambda x: tf.image.random_hue(x, 0.2),
    ):
        assert isinstance(on_host(change, floats), np.ndarray)
    compiled = rx.function(lambda x: tf.image.random_brightness(x, 0.25))
    assert not np.array_equal(compiled(jnp.asarray(floats)), compiled(jnp.asarray(floats)))


def test_colors_back_and_forth():
    floats = np.random.default_rng(0).random((3, 3, 3)).astype("float32")
    again = tf.image.hsv_to_rgb(tf.image.rgb_to_hsv(floats))
    np.testing.assert_allclose(again, floats, atol=1e-6)
    assert tf.image.grayscale_to_rgb(floats[..., :1]).shape == (3, 3, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: tf.image.resize(IMAGE, (2, 2), method="magic"), "'magic'.*bilinear"),
        (lambda: tf.image.resize(IMAGE[0], (2, 2)), r"\(height, width"),
        (lambda: tf.image.crop_to_bounding_box(IMAGE, 1, 0, 2, 2), "rows 1 to 3"),
        (lambda: tf.image.pad_to_bounding_box(IMAGE, 1, 0, 2, 4), "resize_with_crop_or_pad"),
        (lambda: tf.image.central_crop(IMAGE, 0), "`central_fraction` must be"),
        (lambda: tf.image.random_crop(IMAGE, (3, 1, 3)), r"Cannot crop \[3, 1, 3\]"),
    ],
)
def test_errors(wrong, message):
    with pytest.raises(rx.errors.UsageError, match=message):
        wrong()


def test_an_image_may_be_a_variable():
    image = np.linspace(0, 1, 48, dtype=np.float32).reshape(4, 4, 3)
    variable = tf.Variable(image)
    for change in (tf.image.flip_left_right, lambda x: tf.image.adjust_contrast(x, 2.0)):
        np.testing.assert_allclose(change(variable), change(image), rtol=1e-6)


def test_images_are_changed_in_models():
    # Recorded from TensorFlow 2.21 with Keras 2.
    images = tf.keras.Input((2, 2, 1))
    larger = tf.keras.Model(images, tf.image.resize(images, (4, 3), method="nearest"))
    found = larger(np.arange(4.0).reshape(1, 2, 2, 1))[0, ..., 0].numpy().tolist()
    assert found == [[0, 1, 1], [0, 1, 1], [2, 3, 3], [2, 3, 3]]
    colors = tf.keras.Input((2, 2, 3))
    gray = tf.keras.Model(colors, tf.image.rgb_to_grayscale(tf.image.flip_left_right(colors)))
    assert gray.output_shape == (None, 2, 2, 1)
    found = gray(np.arange(12.0).reshape(1, 2, 2, 3))[0, ..., 0]
    np.testing.assert_allclose(found, [[3.8147, 0.815], [9.8141, 6.8144]], rtol=1e-5)


def test_a_window_of_a_random_size_is_cut_in_a_function(caplog):
    @tf.function
    def cut(image):
        size = tf.random.uniform([], 1, 3, tf.int32)
        return tf.image.resize(tf.image.random_crop(image, [size, size, 3]), (2, 2))

    assert on_host(cut).shape == (2, 2, 3)
    assert not caplog.records  # pipelines are plain Python anyway
    assert cut(jnp.asarray(IMAGE)).shape == (2, 2, 3)


def test_a_size_that_is_not_known_makes_calls_of_one_signature_plain_python(caplog):
    traced = []

    @tf.function
    def first(x, count):
        traced.append(isinstance(x, jax.core.Tracer))
        return x[:count]

    assert first(tf.range(4), jnp.int32(2)).tolist() == [0, 1]
    assert first(tf.range(4), jnp.int32(3)).tolist() == [0, 1, 2]
    assert traced[-2:] == [False, False]  # the second call is not traced again
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "first" in record.getMessage()
    assert "tf.slice" in record.getMessage()
    del traced[:]
    assert [first(tf.range(4), 2).tolist() for _ in range(2)] == [[0, 1]] * 2
    assert traced == [True] and first.num_traces == 1
    iterator = iter(tf.data.Dataset.range(3))
    draw = tf.function(lambda x: x[: next(iterator)])
    assert [draw(tf.range(4)).tolist() for _ in range(3)] == [[], [0], [0, 1]]
    kept = tf.function(lambda x: x[x > 1])
    assert [kept(tf.constant(x)).tolist() for x in ([0, 2], [3, 4])] == [[2], [3, 4]]
    with pytest.raises(rx.errors.LeakedTracer, match="tf.where"):
        rx.OneDeviceStrategy("CPU:0").run(lambda x: x[x > 1], args=(jnp.arange(4),))
    with pytest.raises(rx.errors.LeakedTracer, match="tf.slice"):
        rx.OneDeviceStrategy("CPU:0").run(lambda n: jnp.arange(4)[:n], args=(jnp.int32(2),))


@pytest.mark.parametrize("batch", [(), (2,)], ids=["an image", "a batch"])
def test_offsets_may_be_computed_by_a_program(batch):
    image = jnp.broadcast_to(jnp.asarray(IMAGE), (*batch, *IMAGE.shape))

    def moved(image, top, left):
        cut = tf.image.crop_to_bounding_box(image, top, left, 1, 1)
        return cut, tf.image.pad_to_bounding_box(cut, top, left, 2, 2)

    expected = moved(image, 1, 0)
    found = jax.jit(moved)(image, jnp.int32(1), jnp.int32(0))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["crop_to_bounding_box", "pad_to_bounding_box"])
@pytest.mark.parametrize("top", [-1, 2])
def test_a_computed_offset_outside_the_image_is_an_error(name, top):
    image = jnp.asarray(IMAGE)[:1, :1] if name.startswith("pad") else jnp.asarray(IMAGE)
    size = (2, 2) if name.startswith("pad") else (1, 1)
    moved = rx.function(lambda top: getattr(tf.image, name)(image, top, 0, *size))
    with pytest.raises(rx.errors.UsageError, match="not inside the image"):
        np.asarray(moved(jnp.int32(top)))


@pytest.mark.parametrize(
    ("size", "fraction", "expected"), [(10, 0.8, 8), (50, 0.4, 20), (10, 0.2, 2)]
)
def test_a_central_crop_has_the_size_of_the_exact_fraction(size, fraction, expected):
    image = np.zeros((size, size, 1), np.float32)
    assert tf.image.central_crop(image, fraction).shape == (expected, expected, 1)


def test_a_size_that_replicas_lack_is_an_error_before_anything_is_computed(mirrored):
    with mirrored.scope():
        count = rx.Variable(1.0)

    @tf.function
    def step(x, size):
        mirrored.run(lambda: count.assign_add(1.0))
        return mirrored.run(lambda x, size: x[:size], args=(x, size))

    with pytest.raises(rx.errors.LeakedTracer, match="tf.slice"):
        step(jnp.ones(4), jnp.int32(2))
    assert float(count) == 1.0
