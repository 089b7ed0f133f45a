"""Ordinary mistakes in calls of `replicax.tf`: each is refused, in words that name the fix.

TensorFlow refuses each of them, too; that was observed with TensorFlow 2.21.
"""

import jax
import keras
import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError

IMAGE = np.ones((4, 6, 3), np.float32)
BATCH = IMAGE[None]
BOXES = [[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9]]
FILTERS = np.ones((2, 2, 3, 2), np.float32)
ROWS = [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: tf.image.resize(IMAGE, (-1, 2)), "`size`"),
        (lambda: tf.image.resize(IMAGE, (2.5, 2)), "integers"),
        (lambda: tf.image.resize(IMAGE, 2), "a height and a width"),
        (lambda: tf.image.resize_with_crop_or_pad(IMAGE, 0, 5), "at least 1"),
        (lambda: tf.image.adjust_hue(IMAGE, 3), "-1 to 1"),
        (lambda: tf.image.adjust_gamma(IMAGE, -1), "`gamma`"),
        (lambda: tf.image.adjust_jpeg_quality(IMAGE, 200), "0 to 100"),
        (lambda: tf.image.random_brightness(IMAGE, -0.1), "`max_delta`"),
        (lambda: tf.image.random_hue(IMAGE, 0.7), "0.5"),
        (lambda: tf.image.random_contrast(IMAGE, 0.5, 0.2), "range"),
        (lambda: tf.image.rgb_to_grayscale(IMAGE[..., :2]), "(…, 3)"),
        (lambda: tf.image.rgb_to_grayscale(np.ones((2, 2, 4), np.float32)), "(…, 3)"),
        (lambda: tf.image.grayscale_to_rgb(IMAGE), "(…, 1)"),
        (lambda: tf.image.rgb_to_yuv(np.ones((2, 2, 3), np.uint8)), "convert_image_dtype"),
        (lambda: tf.image.convert_image_dtype(IMAGE, tf.string), "`dtype`"),
        (lambda: tf.image.psnr(IMAGE, IMAGE[..., :1], 1.0), "one shape"),
        (lambda: tf.image.ssim(IMAGE, IMAGE, 1.0), "filter_size"),
        (lambda: tf.image.sobel_edges(IMAGE), "batch"),
        (lambda: tf.image.extract_patches(BATCH, [1, 2, 2, 2], [1] * 4, [1] * 4, "VALID"), "sizes"),
        (lambda: tf.image.crop_and_resize(BATCH, BOXES[:1], [1], [2, 2]), "box_indices"),
        (lambda: tf.image.crop_and_resize(BATCH, BOXES[:1], [0], [2, 2], "bicubic"), "bilinear"),
        (lambda: tf.image.non_max_suppression(BOXES, [0.5, 0.6], 2, 1.5), "iou_threshold"),
        (lambda: tf.image.non_max_suppression(BOXES, [0.5], 2), "one score"),
        (lambda: tf.io.encode_png(IMAGE * 0.5), "convert_image_dtype"),
        (lambda: tf.nn.conv2d(BATCH, FILTERS, [1, 2, 2, 2], "SAME"), "channels"),
        (lambda: tf.nn.conv2d(BATCH, FILTERS, 1, "SAEM"), "'SAME', 'VALID'"),
        (lambda: tf.nn.conv2d(BATCH, FILTERS[:, :, :2], 1, "SAME"), "divides the channels"),
        (lambda: tf.nn.conv2d_transpose(BATCH, FILTERS.mT, [1, 99, 9, 2], 2), "output_shape"),
        (lambda: tf.nn.bias_add(ROWS, [1.0]), "`bias`"),
        (lambda: tf.nn.dropout([1, 2], 0.5), "tf.cast"),
        (lambda: tf.nn.depth_to_space(BATCH, 1, "NCHW_VECT_C"), "'NHWC' or 'NCHW'"),
        (lambda: tf.nn.sigmoid_cross_entropy_with_logits([1.0, 0.0], ROWS), "`labels`"),
        (lambda: tf.nn.sparse_softmax_cross_entropy_with_logits([0], ROWS), "`labels`"),
        (lambda: tf.nn.log_poisson_loss([1.0], [1.0, 2.0]), "`targets`"),
        (lambda: tf.linalg.set_diag(ROWS, [1.0, 2.0, 3.0]), "`diagonal`"),
        (lambda: tf.linalg.diag_part(ROWS, k=3), "-1 to 1"),
        (lambda: tf.math.add_n([[1, 2], [3]]), "one shape"),
        (lambda: tf.math.segment_sum([1, 2, 3], [1, 0, 1]), "unsorted_segment_sum"),
        (lambda: tf.math.bincount([1, -1, 2]), "`arr`"),
        (lambda: tf.math.confusion_matrix([0, -1], [1, 1]), "`labels`"),
        (lambda: tf.reduce_sum([1, 2], axis=0.5), "`axis`"),
        (lambda: tf.signal.dct([1.0, 2.0], type=5), "`type`"),
        (lambda: tf.signal.frame([1.0, 2.0], 2, 0), "frame_step"),
        (lambda: tf.signal.frame([1.0, 2.0], 2, 1, axis=1), "axis=1"),
        (lambda: tf.signal.linear_to_mel_weight_matrix(upper_edge_hertz=9000.0), "sample_rate"),
        (lambda: tf.random.uniform([2], 5, 3, tf.int32), "`minval`"),
        (lambda: tf.random.uniform([-1]), "`shape`"),
        (lambda: tf.random.categorical([1.0, 2.0], 3), "`logits`"),
        (lambda: tf.random.stateless_uniform([2], 1), "`seed`"),
        (lambda: tf.slice([1, 2, 3], [1], [5]), "inside"),
        (lambda: tf.pad([1, 2], [[3, 3]], "REFLECT"), "mirror"),
        (lambda: tf.tile([1, 2], [2, 2]), "`multiples`"),
        (lambda: tf.roll([1, 2, 3], [1, 1], [0]), "one length"),
        (lambda: tf.fill([2], [1, 2]), "`value`"),
        (lambda: tf.expand_dims([1.0, 2.0], 5), "-2 to 1"),
        (lambda: tf.expand_dims([1.0, 2.0], [0, 1]), "`axis`"),
        (lambda: tf.expand_dims([1.0, 2.0], None), "`axis`"),
        (lambda: tf.sparse.expand_dims(tf.sparse.from_dense(ROWS), 7), "-3 to 2"),
        (lambda: tf.sparse.retain(tf.sparse.from_dense(ROWS), [True]), "4 flags"),
        (lambda: tf.broadcast_dynamic_shape([2, 3], [2, 4]), "(2, 3) and (2, 4)"),
        (lambda: tf.broadcast_dynamic_shape([-1], [2]), "(-1,) and (2,)"),
        (lambda: tf.strings.unicode_encode([65], "utf-8"), "'UTF-8'"),
        (lambda: tf.strings.unicode_encode([65], "UTF-8", "x"), "`errors`"),
        (lambda: tf.strings.unicode_encode(["a"], "UTF-8"), "`input`"),
        (lambda: tf.strings.unicode_encode(65, "UTF-8"), "vector"),
        (lambda: tf.strings.unicode_encode([65, -1], "UTF-8", "strict"), "[-1]"),
        (lambda: tf.strings.unicode_encode([[65], [66, 67]], "UTF-8"), "different lengths"),
        (lambda: tf.strings.unicode_encode([65], replacement_char=-5), "`replacement_char`"),
        (lambda: tf.strings.unicode_encode([65], replacement_char=0xD800), "`replacement_char`"),
        (lambda: tf.io.decode_raw(None, tf.uint8), "None as bytes"),
        (lambda: tf.io.decode_raw(b"abc", tf.float32), "multiple of 4"),
        (lambda: tf.io.decode_raw([b"ab", b"c"], tf.uint8), "[1, 2]"),
        (lambda: tf.io.decode_raw([1, 2], tf.uint8), "1 as bytes"),
        (lambda: tf.io.decode_raw(b"abcd", tf.string), "`out_type`"),
        (lambda: tf.io.decode_raw(b"abcd", tf.float32, fixed_length=6), "`fixed_length`"),
        (lambda: tf.boolean_mask(tf.ones([3, 2]), [[True] * 3] * 2), "`mask`"),
        (lambda: tf.scatter_nd([[1], [2]], [1], [3]), "`updates`"),
        (lambda: tf.tensor_scatter_nd_update([1, 2], [[0]], [9.5]), "`updates`"),
        (lambda: tf.tensor_scatter_nd_add([1, 2], [[2]], [9]), "from 0 to 1"),
        (lambda: tf.tensor_scatter_nd_update([1, 2], [[-1]], [9]), "got -1"),
        (lambda: tf.scatter_nd([[7]], [1], [3]), "from 0 to 2"),
        (lambda: tf.gather([1, 2, 3], [5]), "from 0 to 2"),
        (lambda: tf.gather(ROWS, [[0], [7]], batch_dims=1), "from 0 to 1"),
        (lambda: tf.gather_nd(tf.constant(ROWS), [[1, 2]]), "from 0 to 1"),
        (lambda: tf.math.unsorted_segment_sum([1, 2], [0, 3], 3), "`segment_ids`"),
        (lambda: tf.math.confusion_matrix([0, 1], [1, 7], 2), "`predictions`"),
        (lambda: tf.math.floordiv(tf.constant([3, 4]), [0, 2]), "divide_no_nan"),
        (lambda: tf.truncatemod(np.array([3]), 0), "divide_no_nan"),
        (lambda: tf.einsum("ij,jk->ik", tf.ones([1, 2]), tf.ones([1, 2])), "(1, 2), (1, 2)"),
        (lambda: tf.Variable([1, 2]).assign([1.5, 2.0]), "tf.cast"),
        (lambda: tf.Variable([1, 2])[1:].assign_add([1.5]), "float"),
        (lambda: tf.Variable([True]).assign([2]), "bool"),
        (lambda: tf.Variable([1.0]).assign(tf.constant([1j])), "complex64"),
        (lambda: tf.Variable([1.5], dtype=tf.int32), "int32"),
        (lambda: tf.Variable([1, 2]).scatter_nd_update([[2]], [5]), "from 0 to 1"),
        (lambda: tf.Variable([1, 2]).scatter_add(tf.IndexedSlices([1.5], [0])), "float"),
        (lambda: tf.Variable([1, 2]).gather_nd([[7]]), "from 0 to 1"),
        (lambda: tf.case([(tf.constant(False), lambda: 1)]), "`default`"),
        (lambda: tf.cond(True, lambda: 1, 2), "`false_fn`"),
        (lambda: tf.map_fn(lambda x: x, [1, 2]), "`elems`"),
        (lambda: tf.foldl(lambda a, x: a + x, [1, 2]), "`elems`"),
        (lambda: tf.range(1, 5, 0), "`delta`"),
        (lambda: tf.range(0.0, 1.0, 1e-50), "`delta`"),  # 0 in 32 bits
        (lambda: tf.range(0.0, float("inf")), "dtype"),
        (lambda: tf.range(0.0, float("nan")), "dtype"),
        (lambda: tf.range(0.0, 1.0, float("nan")), "dtype"),
        (lambda: tf.range(0, 70000, dtype="float16"), "dtype"),
        (lambda: tf.constant([1.5], dtype=tf.int32), "tf.cast"),
        (lambda: tf.constant([1, "a"]), "texts and numbers"),
        (lambda: tf.constant(2**70), "64 bits"),
        (lambda: tf.convert_to_tensor(None), "None"),
        (lambda: tf.strings.strip(None), "as_string"),
        (lambda: tf.strings.length("a", unit="CHAR"), "UTF8_CHAR"),
        (lambda: tf.strings.to_number("99999999999", tf.int32), "tf.int64"),
        (lambda: tf.strings.regex_replace("a", "(", ""), "`pattern`"),
        (lambda: tf.strings.ngrams(["a", "b"], 0), "`ngram_width`"),
        (lambda: tf.strings.format("{} {}", 1), "inputs"),
        (lambda: tf.range(1e30), "Python's `range`"),
        (lambda: tf.range(0, 10**13), "Python's `range`"),
        (lambda: tf.range(10**400), "dtype"),
        (lambda: tf.sparse.retain(tf.sparse.from_dense(ROWS), [None, True]), "None"),
        (lambda: tf.stack([None, 1.0]), "None"),
        (lambda: tf.io.decode_raw(b"abcd", tf.uint8, fixed_length=4.0), "`int`"),
        (lambda: tf.zeros([tf.Variable(3.0)]), "`int`"),
        (lambda: tf.Variable([1.0, 2.0]).assign_add([1.0]), "tf.broadcast_to"),
        (lambda: tf.Variable([1.0, 2.0]).assign_sub(1.0), "tf.broadcast_to"),
        (lambda: tf.constant([7, 8]) // 0, "divide_no_nan"),
        (lambda: tf.constant([7, 8]) % [0, 1], "divide_no_nan"),
        (lambda: 7 // tf.constant([0, 1]), "divide_no_nan"),
        (lambda: 7 % tf.constant(0), "divide_no_nan"),
        (lambda: tf.range(3) // 0, "divide_no_nan"),
        (lambda: tf.shape(IMAGE) % 0, "divide_no_nan"),
        (lambda: tf.reverse_sequence(ROWS, [1, 3], 1), "from 0 to 2"),
        (lambda: tf.reverse_sequence(ROWS, [1], 1), "`seq_lengths`"),
        (lambda: tf.reverse_sequence(ROWS, [1, 1]), "`seq_axis`"),
        (lambda: tf.dynamic_partition([1, 2], [0, 2], 2), "from 0 to 1"),
        (lambda: tf.dynamic_partition([1, 2], [0], 2), "`partitions`"),
        (lambda: tf.dynamic_stitch([[0, 1, 2]], [[1, 2]]), "`indices`"),
        (lambda: tf.signal.mdct(np.zeros(16, "float32"), 6), "multiple of 4"),
    ],
)
def test_what_would_give_wrong_numbers_is_refused(call, named):
    with pytest.raises(UsageError) as caught:
        call()
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: tf.linalg.inv(tf.ones([2, 3])), "`inv(float32[2, 3])`"),
        (lambda: tf.matmul(tf.ones([2, 3]), tf.ones([2, 3])), "`matmul(float32[2, 3], float32"),
        (lambda: tf.reduce_sum([1, 2], axis=1), "`reduce_sum([1, 2], axis=1)`"),
        (
            lambda: tf.concat([tf.ones([2, 2]), tf.ones([3, 3])], 0),
            "[float32[2, 2], float32[3, 3]]",
        ),
        (lambda: tf.random.normal([2], dtype=tf.int32), "`normal([2], dtype=tf.int32)`"),
    ],
)
def test_a_refusal_by_jax_or_numpy_names_the_call(call, shown):
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        call()
    assert isinstance(caught.value, UsageError)
    assert shown in str(caught.value)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("call", [tf.nn.relu, tf.random.uniform, tf.image.flip_up_down])
def test_a_missing_argument_is_a_type_error(call):
    with pytest.raises(TypeError):
        call()


def test_colors_of_any_number_of_axes_are_changed():
    for shape in [(3,), (2, 2, 4, 4, 3)]:
        assert tf.image.rgb_to_grayscale(np.ones(shape, np.float32)).shape == (*shape[:-1], 1)
    film = np.random.default_rng(0).random((2, 2, 4, 4, 3), np.float32)
    np.testing.assert_allclose(
        tf.image.adjust_hue(film, 0.1)[0], tf.image.adjust_hue(film[0], 0.1), rtol=1e-6
    )
    assert tf.fill([2], tf.constant([1])).numpy().tolist() == [1, 1]


def test_values_that_were_wrong():
    """The expected numbers are TensorFlow's, where it takes these arguments."""
    assert np.isnan(tf.linalg.logdet([[1.0, 2.0], [3.0, 4.0]]))
    assert tf.linalg.cholesky([[4.0, 9.0], [2.0, 5.0]]).numpy().tolist() == [[2, 0], [1, 2]]
    assert tf.clip_by_value([1.0, 5.0], 3.0, 2.0).numpy().tolist() == [3, 3]
    assert tf.math.bincount([[1, 1], [2, 0]], axis=0).numpy().tolist() == [1, 2, 1]
    assert int(tf.math.count_nonzero(["a", ""])) == 1
    assert tf.strings.substr("hello", 1, -1).item() == "ello"
    assert int(tf.random.shuffle(5)) == 5
    # Compiled code cannot raise an error.
    gathered = tf.function(lambda places: tf.gather_nd(tf.ones([2, 2]), places))
    assert np.isnan(gathered(tf.constant([[0, 2], [0, -1]]))).all()
    scattered = tf.function(lambda places: tf.scatter_nd(places, tf.constant([1, 2]), [3]))
    assert scattered(tf.constant([[1], [-1]])).numpy().tolist() == [0, 1, 0]
    hsv = tf.image.rgb_to_hsv(np.array([[[0, 1, 2]]], np.uint8))
    np.testing.assert_allclose(hsv, [[[7 / 12, 1, 2]]], rtol=1e-6)
    places, scores = tf.image.non_max_suppression_with_scores(
        BOXES, [0.5, 0.6], 2, soft_nms_sigma=0.5
    )
    assert places.numpy().tolist() == [1, 0]
    np.testing.assert_allclose(scores, [0.6, 0.222429], rtol=1e-5)
    # Of integers, which TensorFlow refuses.
    np.testing.assert_allclose(tf.nn.l2_normalize([3, 4]), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(tf.clip_by_norm([3, 4], 1), [0.6, 0.8], rtol=1e-6)
    assert float(tf.nn.l2_loss([3, 4])) == 12.5


def test_what_tensorflow_takes_is_not_refused(tmp_path):
    x = np.arange(6, dtype=np.float32)
    rows = tf.function(lambda v: tf.math.segment_sum([v, v * 2.0], [0, 0]))(tf.constant([1.0]))
    assert rows.numpy().tolist() == [[3.0]]
    boxes = tf.constant([[0.0, 0.0, 1.0, 1.0]] * 2)
    crops = tf.function(
        lambda i: tf.image.crop_and_resize(tf.ones([2, 4, 4, 1]), boxes, [i, 0], [2, 2])
    )
    assert crops(tf.constant(1)).shape == (2, 2, 2, 1)
    assert tf.linalg.diag_part(tf.zeros([0, 0])).shape == (0,)
    assert tf.random.uniform([0], 0, 0, tf.int32).shape == (0,)
    assert tf.strings.regex_replace(np.array([], object), r"\p{L}", "").shape == (0,)
    assert tf.io.encode_png(np.zeros((2, 2, 2), np.uint8)).numpy()[1:4] == b"PNG"
    assert tf.nn.l2_normalize(x.astype(np.float16), epsilon=np.float64(1e-3)).dtype == tf.float16
    assert tf.einsum("b i, i j -> b j", tf.ones([2, 3]), tf.ones([3, 4])).shape == (2, 4)
    assert tf.Variable([1, 2]).assign(np.array([1.5, 2.0])).numpy().tolist() == [1, 2]
    assert tf.Variable(1).assign_add(np.float64(3.0)).numpy() == 4
    assert tf.math.floordiv(tf.zeros([0], tf.int32), 0).shape == (0,)
    assert tf.math.unsorted_segment_sum([1, 2], [0, -9], 2).numpy().tolist() == [1, 0]
    dataset = tf.data.Dataset.range(2).cache(tf.constant(str(tmp_path / "cache")))
    assert list(dataset.as_numpy_iterator()) == [0, 1]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: tf.gather(tf.constant([1]), 7),
        lambda x: tf.math.floordiv(x, 0),
        lambda x: tf.case([(x > 5, lambda: x), (tf.constant(False), lambda: x)]),
    ],
)
def test_a_branch_that_is_not_taken_may_be_wrong(wrong):
    fn = tf.function(lambda x: tf.cond(x > 0, lambda: x * 2, lambda: wrong(x)))
    assert int(fn(tf.constant(1))) == 2


def test_pieces_of_arrays_of_open_sizes_are_exported(tmp_path):
    class Crop(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, None, None, 3])])
        def __call__(self, x):
            return tf.slice(x, [0, 0, 0, 0], [-1, 2, 2, -1])

    tf.saved_model.save(Crop(), str(tmp_path / "crop"))
    loaded = tf.saved_model.load(str(tmp_path / "crop"))
    assert loaded(np.ones((2, 4, 5, 3), np.float32)).shape == (2, 2, 2, 3)


def test_the_gradient_of_a_cholesky_factor_is_that_of_a_symmetric_matrix():
    a = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    with tf.GradientTape() as tape:
        tape.watch(a)
        total = tf.reduce_sum(tf.linalg.cholesky(a) * [[1.0, 0.0], [2.0, 3.0]])
    expected = [[0.1815, 0.2739], [0.2739, 0.9045]]  # TensorFlow's
    np.testing.assert_allclose(tape.gradient(total, a), expected, atol=1e-4)


def test_a_shape_that_the_value_does_not_have_is_refused():
    for shape in ([None, 5], [None]):
        with pytest.raises(UsageError, match="shape"):
            tf.Variable(np.ones((2, 3)), shape=shape)


def test_a_name_of_a_model_by_position_is_refused():
    x = tf.keras.Input((2,))
    with pytest.raises(UsageError, match="name"):
        tf.keras.Model(x, x, "model")


def test_variables_of_an_optimizer_are_a_list_to_all_trees():
    optimizer = tf.keras.optimizers.Adafactor()
    optimizer.build(var_list=[tf.Variable(tf.ones([2, 2]), name="a/b")])
    assert len(keras.tree.flatten(optimizer.variables)) == len(optimizer.variables()) > 2
    shapes = keras.tree.map_structure(lambda one: one.shape, optimizer.variables)
    assert type(shapes) is list
    is_leaf = lambda one: not isinstance(one, list)  # noqa: E731
    assert type(jax.tree.map(lambda one: one, optimizer.variables, is_leaf=is_leaf)) is list
