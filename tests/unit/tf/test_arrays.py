"""Array functions: on the host or on devices, in Keras models, and what they refuse."""

import sys

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError
from replicax.data._host import HostTensor


class TestHostOrDevice:
    @pytest.mark.parametrize(
        "compute",
        [
            lambda x: tf.cast(x, tf.float32) / 255,
            lambda x: tf.reshape(x, [2, -1]),
            lambda x: tf.concat([x, x], 0),
            lambda x: tf.one_hot(x, 3),
            lambda x: tf.reduce_mean(tf.where(x > 1, x, 0)),
            lambda x: tf.math.reduce_std(tf.sqrt(x)),
            lambda x: tf.gather(x, [0, 1]),
        ],
    )
    def test_of_numpy_arrays_nothing_goes_to_a_device(self, compute):
        assert type(compute(np.arange(4))) is HostTensor

    def test_of_both_it_goes_there(self):
        assert isinstance(tf.add(np.ones(2), tf.ones(2)), jax.Array)
        assert isinstance(tf.reduce_sum([1, 2]), jax.Array)
        assert tf._tensors.numpy_or_jax(np.ones(1), 2) is np
        assert tf._tensors.numpy_or_jax(np.ones(1), tf.ones(1)) is jnp

    def test_in_pipelines_everything_stays_on_the_host(self):
        dataset = rx.data.Dataset.range(2).map(
            lambda i: (tf.zeros([2]), tf.constant([1.0]), tf.fill([1], 2), tf.eye(2))
        )
        assert all(isinstance(part, np.ndarray) for part in next(iter(dataset)))

    def test_numpy_keeps_64_bits(self):
        big = np.array([2**40])
        assert int(tf.add(big, 1)[0]) == 2**40 + 1
        assert tf.cast(np.float32([1]), tf.int64).dtype == np.int64
        with pytest.raises(UsageError, match="jax_enable_x64"):
            tf.add(big, tf.ones(1, tf.int32))

    def test_python_numbers_and_lists_take_the_type_beside_them(self):
        half = tf.ones(2, tf.float16)
        assert tf.multiply(half, 2.5).dtype == tf.add(half, [1.0, 2.0]).dtype == tf.float16
        assert tf.add(np.float32([1]), 2.5).dtype == np.float32

    def test_lists_of_indices_and_masks_keep_their_own_types(self):
        for x in (np.float32([1, 2, 3]), jnp.float32([1, 2, 3])):
            assert tf.gather(x, [2, 0]).tolist() == [3, 1]
            assert tf.gather_nd(x, [[1]]).tolist() == [2]
            assert tf.tensor_scatter_nd_add(x, [[1]], [5]).tolist() == [1, 7, 3]
            assert tf.boolean_mask(x, [True, False, True]).tolist() == [1, 3]
            found = tf.where(x > 1, [1, 2, 3], 0)
            assert found.tolist() == [0, 2, 3] and found.dtype == tf.int32
            assert tf.where(x > 1, 1.0, 0.0).dtype == tf.float32

    def test_unsigned_numbers_are_subtracted(self):
        for x in (np.uint8([5, 5]), jnp.uint8([5, 5])):
            assert tf.tensor_scatter_nd_sub(x, [[1]], [2]).tolist() == [5, 3]
            with pytest.raises(UsageError, match="`updates`"):  # as in TensorFlow
                tf.tensor_scatter_nd_sub(x, [[1]], [2.0])

    def test_text_is_computed_with_on_the_host(self):
        words = tf.stack([tf.constant("a"), "b"])
        assert tf.expand_dims(words, 0).shape == (1, 2)
        assert tf.equal(words, "b").tolist() == [False, True]


class TestHostTensor:
    def test_rows_and_numbers_have_numpy_too(self):
        x = HostTensor.of(np.arange(4.0).reshape(2, 2))
        assert x[0].numpy().tolist() == [0, 1]
        assert [row[1].numpy() for row in x] == [1, 3]
        assert type(x.numpy()) is np.ndarray
        assert type(x.mean() * 2) is HostTensor
        assert x.get_shape().as_list() == [2, 2]
        assert f"{x[0, 1]:.2f}" == "1.00"

    def test_it_goes_into_compiled_code(self):
        x = HostTensor.of(np.float32([1, 2]))
        assert jax.jit(lambda y: x[1] * y + x)(jnp.ones(2)).tolist() == [3, 4]
        assert isinstance(x * jnp.ones(2), jax.Array)

    def test_text_is_shown_plainly(self):
        x = tf.constant(["a", "b"])
        assert (str(x), repr(x)) == ("['a' 'b']", "HostTensor(['a', 'b'], dtype=object)")


class TestShapes:
    def test_the_shape_is_known_in_compiled_code(self):
        def pool(x):
            rows, columns = tf.shape(x)
            half = tf.shape(x)[1] // 2
            return tf.reshape(x, [rows * half, -1]) + tf.cast(tf.size(x) + tf.rank(x), x.dtype)

        found = jax.jit(pool)(jnp.zeros((2, 4)))
        assert found.shape == (4, 2) and found[0, 0] == 10

    def test_a_computed_shape_is_refused(self):
        for call in (
            lambda n: tf.zeros(n),
            lambda n: tf.reshape(jnp.ones(4), [n, -1]),
            lambda n: tf.one_hot(jnp.ones(2, int), n),
        ):
            with pytest.raises(UsageError, match="tf.shape"):
                jax.jit(call)(2)

    @pytest.mark.parametrize(
        "call",
        [
            tf.where,
            lambda x: tf.boolean_mask(x, x > 0),
            tf.unique,
            tf.sequence_mask,
            lambda x: tf.math.segment_sum(x, x),
            tf.math.bincount,
        ],
    )
    def test_a_shape_that_depends_on_values_is_refused(self, call):
        with pytest.raises(UsageError, match="depends on values"):
            jax.jit(call)(jnp.ones(3, int))

    def test_counts_with_a_length_are_compiled(self):
        count = jax.jit(lambda x: tf.math.bincount(x, minlength=3, maxlength=3))
        assert count(jnp.array([0, 2, 2, 5])).tolist() == [1, 0, 2]

    def test_a_slice_may_begin_where_compiled_code_says(self):
        found = jax.jit(lambda x, i: tf.slice(x, [i, 0], [2, -1]))(jnp.arange(8).reshape(4, 2), 1)
        assert found.tolist() == [[2, 3], [4, 5]]


class TestRefusals:
    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda x: tf.add_n([]), "list of one or more"),
            (lambda x: tf.unstack(x, num=3), "`num` must be 4"),
            (lambda x: tf.split(x, 3), "size 4 into 3"),
            (lambda x: tf.split(x, [1, 4]), "size 4 into"),
            (lambda x: tf.pad(x, [[1, 1]], "WRAP"), "`mode` must be"),
            (lambda x: tf.where(x > 0, x), "only one of `x` and `y`"),
            (lambda x: tf.sort(x, direction="UP"), "`direction` must be"),
            (lambda x: tf.nn.dropout(x, 1.5), "`rate` must be"),
            (lambda x: tf.linalg.diag(x, num_rows=9), "square matrices with one diagonal"),
            (
                lambda x: tf.nn.conv2d(x.reshape(1, 2, 2, 1), x, 1, "SAME", "CHWN"),
                "`data_format` must be",
            ),
        ],
    )
    def test_wrong_arguments_are_said(self, call, message):
        with pytest.raises(UsageError, match=message):
            call(np.ones(4, np.float32))


class TestResults:
    """What TensorFlow cannot be asked, or answers otherwise: see also tests/parity."""

    def test_the_largest_of_none(self):
        assert tf.reduce_max(np.zeros((0, 2), np.float32), axis=0).tolist() == [-np.inf] * 2
        assert tf.reduce_min(jnp.zeros((0,), int)) == 2**31 - 1

    def test_clipped_gradients_keep_none_and_show_nan(self):
        clipped, norm = tf.clip_by_global_norm([tf.constant([3.0, 4.0]), None], 1.0)
        assert float(norm) == 5 and clipped[1] is None
        np.testing.assert_allclose(clipped[0], [0.6, 0.8], rtol=1e-6)
        broken, _ = tf.clip_by_global_norm([tf.constant([np.inf]), tf.ones(1)], 1.0)
        assert np.isnan(broken[1]).all()

    def test_gradients_at_zero_are_numbers(self):
        def total(x):
            clipped = tf.clip_by_norm(x, 1.0) + tf.math.divide_no_nan(x, x)
            return tf.reduce_sum(clipped + tf.nn.l2_loss(x) + tf.math.xlogy(x, x + 1))

        assert np.isfinite(jax.grad(total)(jnp.zeros(2))).all()

    def test_a_class_that_is_not_there_gives_nan(self):
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits([0, 3, -1], tf.zeros((3, 3)))
        assert np.isnan(loss).tolist() == [False, True, True]

    def test_dropout_keeps_the_mean(self):
        tf.random.set_seed(0)
        x = tf.nn.dropout(tf.ones((100, 100)), 0.25, noise_shape=[None, 100])
        assert set(np.unique(x)) == {0, np.float32(4 / 3)}
        assert abs(float(tf.reduce_mean(x)) - 1) < 0.02

    def test_losses_over_replicas_are_replicax_own(self):
        assert tf.nn.compute_average_loss is rx.nn.compute_average_loss
        assert tf.nn.scale_regularization_loss is rx.nn.scale_regularization_loss
        rows = tf.nn.embedding_lookup_sparse(tf.eye(2), jnp.array([[0, 1]]), None, combiner="sum")
        assert rows.tolist() == [[1, 1]]

    @pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
    @pytest.mark.parametrize(
        ("compute", "values", "dtype", "expected"),
        [  # recorded from TensorFlow 2.21
            (tf.reduce_mean, [200, 250], "uint8", 225),
            (tf.reduce_mean, [-100, -101], "int8", -100),
            (tf.reduce_mean, [30000] * 3, "int16", 30000),
            (tf.reduce_mean, [2**31 - 1, 2**31 - 1, 5], "int32", 1431655766),
            (tf.reduce_mean, [-7, 2], "int32", -2),
            (tf.reduce_mean, [-(2**31)] * 3, "int32", -(2**31)),
            (tf.reduce_mean, [], "int32", 0),
            (tf.reduce_mean, [[], []], "uint8", 0),
            (lambda x: tf.reduce_mean(tf.repeat(x, 100000)), [50000], "int32", 50000),
            (lambda x: tf.reduce_mean(tf.repeat(x, 100000)), [50001, -1], "int32", 25000),
            (lambda x: tf.reduce_mean(tf.repeat(x, 160000)), [20000], "int16", 20000),
            (lambda x: tf.reduce_mean(tf.repeat(x, 19267584)), [130], "uint8", 130),
            (lambda x: tf.reduce_mean(x, -1, True), [[-3, -4], [1, 2]], "int32", [[-3], [1]]),
            (lambda x: tf.linspace(x[0], x[1], 3), [0, 5], "int32", [0, 2.5, 5]),
            (lambda x: tf.math.floordiv(x, x[::-1]), [0.1, 1.0], "float32", [0, 10]),
            (lambda x: tf.math.floordiv(x[:, None], x), [3.7, -1.5], "float32", [[1, -3], [-1, 1]]),
            (lambda x: tf.truncatediv(x[:, None], x), [3.7, -1.5], "float32", [[1, -2], [0, 1]]),
            (lambda x: tf.truncatediv(x, x[::-1]), [2**24 + 1, -1], "int32", [-(2**24) - 1, 0]),
            (lambda x: tf.nn.relu6(x).dtype == x.dtype, [1, 9], "int32", True),
            (lambda x: tf.math.squared_difference(x, 0), [1j, 2], "complex64", [1, 4]),
            (tf.math.reduce_euclidean_norm, [3j, 4], "complex64", 5),
            (tf.math.l2_normalize, [3j, 4], "complex64", [0.6j, 0.8]),
            (lambda x: tf.nn.moments(x, [0])[1], [1j, -1j], "complex64", 1),
        ],
    )
    def test_types_that_do_not_hold_what_is_between(self, make, compute, values, dtype, expected):
        np.testing.assert_allclose(compute(make(np.array(values, dtype))), expected, rtol=1e-6)

    @pytest.mark.parametrize("divide", [tf.math.floordiv, tf.truncatediv])
    def test_quotients_of_wrong_shapes_are_refused(self, divide):
        with pytest.raises(rx.errors.UsageError, match="3"):
            divide(jnp.ones(2), jnp.ones(3))


class TestKerasModels:
    @staticmethod
    def model():
        inputs = keras.Input((4, 3))
        x = tf.reduce_mean(keras.layers.Dense(2)(inputs), axis=1)
        x = tf.reshape(tf.concat([x, tf.cast(x, tf.float32)], axis=-1), [tf.shape(x)[0], 2, -1])
        first, second = tf.split(x * 2, 2, axis=1)
        x = tf.stack([first, tf.where(second > 0, second, 0.0)], axis=1)
        return keras.Model(inputs, tf.nn.top_k(tf.abs(x=x), k=1).values)

    def test_array_functions_are_layers_of_it(self):
        model = self.model()
        x = np.random.default_rng(0).normal(size=(5, 4, 3)).astype("float32")
        mean = np.mean(x @ np.asarray(model.weights[0]) + np.asarray(model.weights[1]), axis=1)
        pairs = np.stack([mean, np.maximum(mean, 0)], axis=1)[:, :, None] * 2
        np.testing.assert_allclose(model(x), np.abs(pairs).max(-1, keepdims=True), rtol=1e-5)
        model.compile("sgd", "mse")
        model.fit(x, np.zeros((5, 2, 1, 1)), verbose=0)

    def test_it_is_saved_and_loaded_in_another_program(self, tmp_path, monkeypatch):
        path, x = str(tmp_path / "model.keras"), np.ones((2, 4, 3), "float32")
        model = self.model()
        model.save(path)
        # As in a program that has not called an array function yet.
        monkeypatch.delitem(sys.modules, "replicax.tf._symbolic")
        monkeypatch.delitem(keras.saving.get_custom_objects(), "replicax>ArrayFunction")
        np.testing.assert_array_equal(tf.keras.models.load_model(path)(x), model(x))

    def test_a_layer_may_ask_for_the_size_of_the_batch(self):
        class Sampling(keras.layers.Layer):
            def call(self, x):
                rows, columns = tf.shape(x)[0], tf.shape(x)[1]
                noise = tf.zeros((rows, columns)) * tf.random.normal([rows, columns])
                return x + noise + tf.reshape(tf.tile(x[:, None], [1, 2, 1]), [rows, -1])[:, :3]

        inputs = keras.Input((3,))
        model = keras.Model(inputs, Sampling()(inputs))
        assert model.output_shape == (None, 3)
        assert np.asarray(model(np.ones((5, 3)))).tolist() == [[2] * 3] * 5

    def test_a_function_that_is_gone_is_said(self):
        with pytest.raises(UsageError, match="no_such_function"):
            tf._calls.named("no_such_function")


@pytest.mark.parametrize(
    ("cast", "number", "dtype"),
    [
        (tf.cast, 3e9, tf.int64),
        (tf.cast, -1, tf.uint64),
        (tf.saturate_cast, -3e9, tf.int64),
        (tf.saturate_cast, 5e9, tf.uint64),
    ],
)
def test_a_cast_to_64_bits_refuses_what_does_not_fit(cast, number, dtype):
    with pytest.raises(UsageError, match="jax_enable_x64"):
        cast(tf.constant(number), dtype)
    with pytest.raises(UsageError, match="jax_enable_x64"):
        rx.function(lambda: cast(tf.constant(number), dtype))()


def test_a_cast_to_64_bits_of_what_fits():
    assert tf.cast(tf.constant([2e9, np.nan]), tf.int64)[0] == 2 * 10**9
    assert tf.cast(np.array([2.0**40]), tf.int64).tolist() == [2**40]  # of NumPy
    assert int(tf.saturate_cast(tf.constant(-1), tf.uint64)) == 0


def test_an_array_may_be_rolled_by_a_computed_number():
    rolled = jax.jit(lambda x, by: (tf.roll(x, by, 0), tf.roll(x, [by, 1], [0, 1])))
    x = np.arange(6).reshape(3, 2)
    one, both = rolled(x, jnp.int32(2))
    np.testing.assert_array_equal(one, np.roll(x, 2, 0))
    np.testing.assert_array_equal(both, np.roll(x, (2, 1), (0, 1)))


def test_parts_of_computed_sizes_are_made_in_plain_python():
    parts = tf.function(lambda x, size: tf.split(x, [size, 3 - size]))
    assert [part.tolist() for part in parts(tf.range(3), tf.constant([1])[0])] == [[0], [1, 2]]


def test_angles_are_tensorflows():
    # tf.math.angle of TensorFlow 2.21.
    found = tf.math.angle(tf.constant([-2.25 + 4.75j, 3.25 + 5.75j, -1 + 0j]))
    np.testing.assert_allclose(found, [2.01317055, 1.05634501, 3.14159265], rtol=1e-6)
    np.testing.assert_allclose(tf.math.angle([-2.0, 0.0, 3.0]), [3.14159265, 0, 0], rtol=1e-6)


SPECIAL = [0.5, 1.5, 4.0]
SHARES = [0.25, 0.5, 0.9]
SINE = np.sin(np.arange(16.0)).astype("float32")
NAN = float("nan")


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(
    ("compute", "values", "expected"),
    [  # recorded from TensorFlow 2.21
        (tf.math.bessel_i0, SHARES, [1.0156863, 1.0634835, 1.2129852]),
        (tf.math.bessel_i0e, SHARES, [0.7910173, 0.6450354, 0.4931630]),
        (tf.math.bessel_i1, SHARES, [0.1259791, 0.2578943, 0.4971264]),
        (tf.math.special.bessel_i1e, SHARES, [0.09811264, 0.1564208, 0.2021165]),
        (tf.math.ndtri, SHARES, [-0.6744898, 0, 1.2815511]),
        (tf.math.erfcinv, SHARES, [0.8134199, 0.4769363, 0.08885600]),
        (tf.math.special.dawsn, SPECIAL, [0.4244364, 0.4282491, 0.1293480]),
        (tf.math.special.expint, SPECIAL, [0.4542198, 3.3012857, 19.6308746]),
        (tf.math.special.spence, SPECIAL, [0.5822403, -0.4484142, -1.9393754]),
        (lambda x: tf.math.igamma([0.5, 2.0, 3.0], x), SPECIAL, [0.6826895, 0.4421746, 0.7618967]),
        (lambda x: tf.math.igammac(a=[0.5, 2.0, 3.0], x=x), SPECIAL,
         [0.3173105, 0.5578254, 0.2381033]),
        (lambda x: tf.math.betainc([0.5, 2.0, 3.0], [1.0, 2.0, 0.5], x), [0.1, 0.5, 0.9],
         [0.3162278, 0.5, 0.4454155]),
        (lambda x: tf.math.polygamma([0.0, 1.0, 2.0], x), SPECIAL,
         [-1.9635108, 0.9348022, -0.08003975]),
        (lambda x: tf.math.polygamma(1.0, x), SPECIAL, [4.9348021, 0.9348022, 0.2838230]),
        (lambda x: tf.math.zeta([1.5, 2.0, 3.0], q=x), SPECIAL, [4.7765379, 0.9348022, 0.04001987]),
        (lambda x: tf.math.nextafter(x, [2.0, 0.0]) - 1, [1.0, 1.0], [2.0**-23, -(2.0**-24)]),
        (lambda x: tf.math.polyval([2.0, -1.0, 3.0], x), SPECIAL, [3, 6, 31]),
        (lambda x: tf.math.polyval([], x), SPECIAL, [0, 0, 0]),
        (tf.math.invert_permutation, np.int32([3, 4, 0, 2, 1]), [2, 4, 3, 0, 1]),
        (lambda x: tf.reverse_sequence(tf.reshape(x, [2, 6]), [3, 5], seq_axis=1),
         np.arange(12), [[2, 1, 0, 3, 4, 5], [10, 9, 8, 7, 6, 11]]),
        (lambda x: tf.reverse_sequence(tf.reshape(x, [3, 2, 2]), [3, 1], seq_axis=0, batch_axis=1),
         np.arange(12), [[[8, 9], [2, 3]], [[4, 5], [6, 7]], [[0, 1], [10, 11]]]),
        (lambda x: tf.concat(tf.dynamic_partition(x, [1, 0, 1, 2], 4), 0), [10, 20, 30, 40],
         [20, 10, 30, 40]),
        (lambda x: tf.dynamic_partition(x, [[1, 0], [0, 0]], 2)[0], [[1, 2], [3, 4]], [2, 3, 4]),
        (lambda x: tf.dynamic_stitch([[0, 2], [1, 3]], [x, [3, 4]]), [1, 2], [1, 3, 2, 4]),
        (lambda x: tf.dynamic_stitch([[0, 1], [1, 2]], [x, [3, 4]]), [1, 2], [1, 3, 4]),
        (lambda x: tf.dynamic_stitch([2, [3, 0]], [x, [[3, 4], [5, 6]]]), [1, 2],
         [[5, 6], [0, 0], [1, 2], [3, 4]]),
        (tf.argmax, [1.0, NAN, 2.0], 2),
        (tf.argmax, [NAN, 1.0, 2.0], 2),
        (tf.argmax, [NAN, NAN], 0),
        (tf.argmax, [NAN, -3.0], 1),
        (tf.argmin, [NAN, -3.0], 1),
        (tf.argmin, [3.0, NAN, 2.0], 2),
        (tf.argmin, [NAN, 1.0, 2.0], 1),
        (lambda x: tf.argmax(x, 1), np.float16([[NAN, 1.0], [2.0, NAN]]), [1, 0]),
        (lambda x: tf.signal.vorbis_window(8)[:4] * x, [1.0], [0.0597493, 0.4660662, 0.8847499,
                                                              0.9982134]),
        (lambda x: tf.signal.kaiser_bessel_derived_window(8)[:4] * x, [1.0],
         [0.006071829, 0.3882062, 0.9215726, 0.9999815]),
        (lambda x: tf.signal.mdct(x, 8)[::2], SINE,
         [[2.7932470, 2.0824304, -1.0580952, 0.1605889],
          [0.6288218, -4.4020123, -0.3681259, -0.4398210]]),
        (lambda x: tf.signal.mdct(x, 8, window_fn=None, pad_end=True, norm="ortho")[3], SINE,
         [-0.3853360, 0.7404876, -0.3529245, -0.2136796]),
        (lambda x: tf.signal.inverse_mdct(tf.signal.mdct(x, 8))[:4], SINE,
         [-0.008416758, -0.1921682, 0.3647996, 0.1406163]),
        (lambda x: tf.signal.inverse_mdct(tf.signal.mdct(x, 8))[4:12], SINE, SINE[4:12]),
        (lambda x: tf.signal.inverse_mdct(tf.signal.mdct(x, 8, None, norm="ortho"), None, "ortho"),
         SINE, [-0.0705600, -0.0339132, 0.0339132, 0.0705600, *SINE[4:12], 0.0568575, 0.7053871,
                0.7053871, 0.0568575]),
    ],
)  # fmt: skip
def test_numbers_of_tensorflow(make, compute, values, expected):
    kept = np.asarray(values)
    kept = kept.astype("float32") if kept.dtype == np.float64 else kept
    np.testing.assert_allclose(compute(make(kept)), expected, rtol=2e-5, atol=2e-7)


def test_special_functions_are_compiled_and_have_gradients():
    gradient = jax.jit(jax.grad(lambda x: tf.math.igamma(2.0, x)))(jnp.float32(1.5))
    np.testing.assert_allclose(gradient, 1.5 * np.exp(-1.5), rtol=1e-5)  # its density
    rows = jax.jit(lambda n: tf.reverse_sequence(tf.constant([[1, 2, 3]]), n, 1))(jnp.array([2]))
    assert rows.tolist() == [[2, 1, 3]]
