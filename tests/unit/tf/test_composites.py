"""Sparse and ragged tensors in compiled code, with gradients, in data sets; and where not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError

WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2)


@pytest.fixture
def sparse():
    return tf.SparseTensor([[0, 2], [1, 0], [2, 1]], [3.0, -1.0, 2.0], [3, 4])


@pytest.fixture
def ragged():
    return tf.ragged.constant([[3.0, 1.0, 4.0], [], [5.0, 9.0]])


def test_compiled_code_takes_and_gives_sparse_tensors(sparse):
    traces = []

    @tf.function
    def compute(x, y):
        traces.append(1)
        both = tf.sparse.concat(0, [x, tf.sparse.map_values(tf.square, x)])
        product = tf.sparse.sparse_dense_matmul(x, y)
        return product, tf.sparse.reduce_max(x, 1), tf.sparse.transpose(x) * 2, both

    product, largest, twice, both = compute(sparse, WEIGHTS)
    assert product.numpy().tolist() == [[12, 15], [0, -1], [4, 6]]
    assert largest.numpy().tolist() == [3, -1, 2]
    assert tf.sparse.to_dense(twice).numpy()[:3].tolist() == [[0, -2, 0], [0, 0, 4], [6, 0, 0]]
    assert both.values.numpy().tolist() == [3, -1, 2, 9, 1, 4] and both.shape == (6, 4)
    compute(sparse.with_values([1.0, 1.0, 1.0]), WEIGHTS)
    assert len(traces) == 1


def test_compiled_code_knows_the_lengths_of_rows(ragged):
    traces = []

    @tf.function
    def compute(rows):
        traces.append(1)
        return rows + 1, tf.reduce_mean(rows, axis=1), rows[:, :1].to_tensor(-1.0)

    more, means, first = compute(ragged)
    assert more.to_list() == [[4, 2, 5], [], [6, 10]]
    np.testing.assert_allclose(means, [8 / 3, np.nan, 7], rtol=1e-6)
    assert first.numpy().tolist() == [[3], [-1], [5]]
    compute(ragged * 2)
    assert len(traces) == 1
    assert compute(tf.ragged.constant([[1.0], [2.0]]))[0].to_list() == [[2], [3]]
    assert len(traces) == 2


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: tf.sparse.from_dense(x),
        lambda x: tf.RaggedTensor.from_row_splits(x[0], tf.cast(x[0], tf.int32)),
        lambda x: tf.RaggedTensor.from_tensor(x, padding=0),
    ],
)
def test_sizes_that_depend_on_values_are_refused_in_compiled_code(compute):
    with pytest.raises(rx.errors.UsageError):
        jax.jit(compute)(jnp.ones([2, 2]))


def test_places_held_twice_are_found_in_compiled_code():
    twice = tf.SparseTensor([[0, 1], [0, 1]], [1.0, 2.0], [1, 2])
    with pytest.raises(Exception, match="sorted"):
        jax.block_until_ready(tf.function(tf.sparse.to_dense)(twice))


def test_gradients():
    values = tf.Variable([1.0, 2.0, 3.0])
    with tf.GradientTape() as tape:
        rows = tf.RaggedTensor.from_row_lengths(values, [2, 1])
        loss = tf.reduce_sum(tf.reduce_mean(rows**2, axis=1))
    assert tape.gradient(loss, values).numpy().tolist() == [1, 2, 6]
    with tf.GradientTape() as tape:
        held = tf.SparseTensor([[0, 2], [1, 0], [2, 1]], values, [3, 4])
        loss = tf.reduce_sum(tf.sparse.sparse_dense_matmul(held, WEIGHTS) ** 2)
    # The squares of the rows of the weights that each value meets, times 2 · value.
    assert tape.gradient(loss, values).numpy().tolist() == [82, 4, 78]


def test_operators_of_arrays_leave_ragged_tensors_to_us(ragged):
    ones = tf.constant([[1.0], [2.0], [3.0]])
    for column in (ones, ones.numpy()):
        assert (column + ragged).to_list() == [[4, 2, 5], [], [8, 12]]
    assert (ragged + tf.Variable(ones)).to_list() == [[4, 2, 5], [], [8, 12]]


def test_replicas_get_them_whole(sparse, ragged, mirrored):

    def step(x, rows):
        return tf.reduce_sum(tf.sparse.to_dense(x)), tf.reduce_sum(rows, axis=1)

    total, sums = mirrored.run(step, (sparse, ragged))
    assert [float(one) for one in mirrored.experimental_local_results(total)] == [4, 4]
    assert mirrored.experimental_local_results(sums)[1].tolist() == [8, 0, 14]


def test_data_sets_batch_sparse_tensors():
    rows = tf.data.Dataset.range(4).map(
        lambda i: {"s": tf.SparseTensor([[int(i % 2)]], [i], [2 + int(i)]), "i": i}
    )
    dense = rows.batch(3).map(lambda batch: tf.sparse.to_dense(batch["s"]))
    assert [batch.tolist() for batch in dense] == [
        [[0, 0, 0, 0], [0, 1, 0, 0], [2, 0, 0, 0]],
        [[0, 3, 0, 0, 0]],
    ]
    whole = tf.data.Dataset.from_tensors(tf.SparseTensor([[1]], [5], [3]))
    assert whole.element_spec == tf.SparseTensorSpec([3], tf.int32)
    assert [tf.sparse.to_dense(one).tolist() for one in whole] == [[0, 5, 0]]


def test_specs_say_what_they_describe(sparse, ragged):
    of_rows = tf.data.Dataset.from_tensor_slices((sparse, ragged)).batch(2, drop_remainder=True)
    specs = (tf.SparseTensorSpec([2, 4]), tf.RaggedTensorSpec([2, None]))
    assert of_rows.element_spec == specs
    assert specs[1].ragged_rank == 1 and specs[1].value_type is tf.RaggedTensor
    assert specs[0].value_type is tf.SparseTensor
    assert tf.RaggedTensorSpec([None, None]).is_compatible_with(ragged)
    assert not tf.TensorSpec([3, None]).is_compatible_with(ragged)
    generated = tf.data.Dataset.from_generator(
        lambda: iter([ragged]), output_signature=tf.RaggedTensorSpec([None, None])
    )
    assert [one.to_list() for one in generated] == [[[3, 1, 4], [], [5, 9]]]
    for element, spec in [
        (ragged, tf.RaggedTensorSpec([None, None], tf.int32)),
        (np.ones((2, 3), "float32"), tf.RaggedTensorSpec([2, None])),
        (np.ones((2, 3), "float32"), tf.SparseTensorSpec([2, 3])),
    ]:
        wrong = tf.data.Dataset.from_generator(lambda e=element: iter([e]), output_signature=spec)
        with pytest.raises(rx.errors.UsageError, match=type(spec).__name__):
            next(iter(wrong))


def test_an_input_signature_describes_them(sparse, ragged, mirrored):
    dataset = tf.data.Dataset.from_tensor_slices({"r": ragged, "s": sparse}).batch(3)
    distributed = mirrored.experimental_distribute_dataset(dataset)

    @tf.function(input_signature=[distributed.element_spec])
    def sums(batch):
        def of(one):
            return tf.reduce_sum(one["r"]) + tf.sparse.reduce_sum(one["s"])

        return mirrored.reduce("SUM", mirrored.run(of, args=(batch,)), axis=None)

    assert [float(sums(batch)) for batch in distributed] == [26]
    total = tf.function(tf.reduce_sum, input_signature=[tf.RaggedTensorSpec([None, None])])
    assert float(total(ragged)) == 22
    for wrong in (sparse, ragged.to_tensor(), tf.cast(ragged, tf.int32)):
        with pytest.raises(rx.errors.SignatureMismatch):
            total(wrong)


def test_a_position_is_taken_among_rows(sparse, ragged):
    rows = tf.data.Dataset.from_tensor_slices({"r": ragged, "s": sparse}).batch(2).rebatch(1)
    iterator = iter(rows)
    next(iterator)
    again = iter(rows)
    again.set_state(iterator.get_state())
    left = [[one["r"].to_list(), tf.sparse.to_dense(one["s"]).tolist()] for one in again]
    assert left == [[[[]], [[-1, 0, 0, 0]]], [[[5, 9]], [[0, 2, 0, 0]]]]


def test_each_replica_gets_its_rows(ragged, mirrored):
    with mirrored.scope():
        weight = tf.Variable(2.0)
    lengths = []

    @tf.function
    def step(iterator):
        def of(rows):
            lengths.append(rows.row_lengths().tolist())
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(rows * weight)
            return tape.gradient(loss, weight)

        return mirrored.reduce("SUM", mirrored.run(of, args=(next(iterator),)), axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(ragged).batch(3)
    iterator = iter(mirrored.experimental_distribute_dataset(dataset))
    assert float(step(iterator)) == 22
    assert [3, 0] in lengths and [2] in lengths
    pieces = next(iter(mirrored.experimental_distribute_dataset(dataset)))
    assert [piece.to_list() for piece in pieces.values] == [[[3, 1, 4], []], [[5, 9]]]


def test_nothing_else_cuts_them_into_rows(sparse, ragged, mirrored):
    made = tf.data.Dataset
    batches = made.range(4).map(lambda i: tf.SparseTensor([[0]], [i], [2])).batch(2)
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    pairs = made.zip((batches, made.range(4).batch(2)))
    refused = [
        lambda: model.fit(pairs, verbose=0),
        lambda: model.fit(mirrored.experimental_distribute_dataset(pairs), verbose=0),
        lambda: list(made.from_tensor_slices(tf.SparseTensor([[0]], [1], [2]))),
        lambda: list(batches.padded_batch(1)),
        lambda: list(made.from_tensors(ragged).repeat(2).batch(2)),
        lambda: tf.map_fn(lambda row: row, ragged),
        lambda: tf.vectorized_map(lambda row: row, sparse),
        lambda: jax.vmap(lambda row: row.values)(ragged),
    ]
    for call in refused:
        with pytest.raises(rx.errors.UsageError):
            call()


def test_what_takes_arrays_only_says_so(sparse, ragged):
    for call in (np.asarray, tf.convert_to_tensor, tf.sort, tf.stop_gradient, tf.Variable, bool):
        for value in (sparse, ragged):
            if call is tf.stop_gradient:  # of each array
                assert type(call(value)) is type(value)
                continue
            with pytest.raises(rx.errors.UsageError):
                call(value)
    for call in (
        lambda: tf.matmul(sparse, WEIGHTS),
        lambda: tf.stack([ragged, ragged]),
        lambda: tf.ragged.constant([[[1, 2], [3]], [[4]]]),
        lambda: tf.expand_dims(ragged, 1),
        lambda: tf.gather(np.eye(3), tf.ragged.constant([[1, 0], [], [1]]), batch_dims=1),
        lambda: tf.gather(np.eye(3), tf.ragged.constant([[1, 0], [], [1]]), None, 1),
        lambda: ragged + sparse,
        lambda: tf.io.RaggedFeature(tf.int64, partitions=["x"]),
        lambda: tf.keras.layers.Dense(1)(sparse),
        lambda: tf.SparseTensor([[0, 9]], [1], [3, 4]),
    ):
        with pytest.raises(rx.errors.UsageError):
            call()


def test_printing(sparse, ragged, capfd):
    tf.print(sparse, ragged[:1])
    assert "[3 -1 2]" in capfd.readouterr().err
    assert str(ragged) == "<tf.RaggedTensor [[3.0, 1.0, 4.0], [], [5.0, 9.0]]>"


def test_few_beams_have_a_message():
    with pytest.raises(rx.errors.UsageError):
        tf.nn.ctc_beam_search_decoder(np.zeros((2, 1, 3), np.float32), [2], 1, top_paths=2)
    with pytest.raises(rx.errors.UsageError):
        tf.nn.ctc_greedy_decoder(np.zeros((2, 1, 3), np.float32), [3])


def test_means_keep_their_type_and_nothing_at_all_has_no_largest():
    halves = tf.ragged.constant([[1.0, 2.0], []], dtype=tf.float16)
    assert tf.reduce_mean(halves, 1).dtype == np.float16
    nothing = tf.ragged.constant([[], []], dtype=tf.float32)
    assert (float(tf.reduce_max(nothing)), float(tf.reduce_sum(nothing))) == (-np.inf, 0.0)


def test_the_spec_of_a_ragged_tensor_takes_arguments_in_the_order_of_tensorflow():
    spec = tf.RaggedTensorSpec([None, None], tf.int32, 0, np.int32)
    assert (spec.ragged_rank, spec.row_splits_dtype, spec.name) == (0, np.int32, None)
    assert tf.RaggedTensorSpec([2, None]).ragged_rank == 1
    assert tf.RaggedTensorSpec([2, None, None]).ragged_rank == 2


def test_ragged_tensors_of_several_replicas_are_not_combined(ragged, mirrored):
    data = mirrored.experimental_distribute_dataset(
        tf.data.Dataset.from_tensor_slices(ragged).batch(2)
    )
    batch = next(iter(data))
    for combine in (
        lambda: mirrored.reduce("SUM", batch, axis=None),
        lambda: mirrored.gather(batch, 0),
    ):
        with pytest.raises(UsageError):
            combine()


def test_rows_of_several_axes_are_one_ragged_axis_in_a_data_set():
    whole = tf.RaggedTensor.from_row_lengths(np.arange(6.0).reshape(3, 2), [1, 2])
    data = tf.data.Dataset.from_tensor_slices(whole)
    assert data.element_spec.ragged_rank == 0
    (batch,) = data.batch(2)
    assert batch.to_list() == whole.to_list()
    assert data.batch(2).element_spec.ragged_rank == batch.spec.ragged_rank == 1
