"""`tf.data`: the pipelines of `rx.data`, with TensorFlow's names, types and tensors."""

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError

Dataset = tf.data.Dataset


def test_the_names_are_those_of_rx_data():
    assert tf.data.Dataset is rx.data.Dataset
    assert tf.data.Iterator is rx.data.DatasetIterator
    assert tf.data.experimental.AutoShardPolicy is rx.data.AutoShardPolicy
    assert {"AUTOTUNE", "Options", "TFRecordDataset", "experimental"} <= set(dir(tf.data))


def test_a_loop_gets_what_has_numpy():
    pairs = Dataset.from_tensor_slices((np.eye(2, dtype="float32"), [3, 4]))
    rows = [(row.numpy(), label.numpy()) for row, label in pairs]
    assert rows[1][0].tolist() == [0.0, 1.0]
    assert [type(label) for _, label in rows] == [np.int32, np.int32]
    (batch,) = pairs.map(lambda row, label: {"row": row, "label": label}).batch(2)
    assert batch["label"].numpy().tolist() == [3, 4]
    assert next(iter(pairs.batch(2)))[0].numpy().shape == (2, 2)
    assert next(iter(Dataset.from_tensors((([1], [2]), [3]))))[0][1].numpy().tolist() == [2]


def test_numbers_of_a_loop_are_still_numbers():
    for number in Dataset.range(2, 3):
        assert (number.numpy(), int(number), number + 1, [0, 1, 2][number]) == (2, 2, 3, 2)
        assert f"{number:03d}" == "002"


def test_texts_of_a_loop_are_bytes_in_numpy():
    (text,) = Dataset.from_tensor_slices(["é"])
    assert text.numpy() == "é".encode()
    (batch,) = Dataset.from_tensor_slices(["é"]).batch(1)
    assert batch.numpy().tolist() == ["é".encode()]


def test_other_ways_to_elements_stay_plain():
    seen = []
    plain = Dataset.range(2).map(lambda x: seen.append(type(x)) or x)
    assert [type(x) for x in plain.as_numpy_iterator()] == [np.int64, np.int64] == seen
    assert list(Dataset.from_tensor_slices(["a"]).as_numpy_iterator()) == ["a"]


def test_jax_takes_what_a_loop_gets():
    (batch,) = Dataset.range(3, output_type=tf.float32).batch(3)
    assert float(jax.jit(lambda x: x.sum())(batch)) == 3.0
    assert isinstance(jax.device_put(batch), jax.Array)


def test_without_tf_a_loop_gets_plain_arrays(monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", False)
    assert type(next(iter(Dataset.range(2).batch(2)))) is np.ndarray
    assert list(Dataset.from_tensor_slices(["a"])) == ["a"]


def test_what_a_loop_got_goes_into_pipelines_again():
    (row,) = Dataset.from_tensors([1, 2])
    again = Dataset.from_tensors((row, "x")).map(lambda row, text: (row, text))
    ((found, text),) = again.as_numpy_iterator()
    assert type(found) is np.ndarray
    assert text == "x"


def test_tensors_and_types_of_tensorflow_are_taken():
    rows = Dataset.from_tensor_slices((tf.constant([1, 2]), tf.constant(["a", "b"])))
    assert list(rows.as_numpy_iterator()) == [(1, "a"), (2, "b")]
    assert Dataset.range(tf.constant(4)).batch(tf.constant(2)).cardinality() == 2
    scaled = Dataset.range(2, output_type=tf.uint8).map(lambda x: tf.cast(x, tf.float32) / 2)
    assert [float(x) for x in scaled] == [0.0, 0.5]
    assert scaled.element_spec.dtype == tf.float32


def counting(n):
    for number in range(n):
        yield number, [1.0] * number


@pytest.mark.parametrize(
    "signature",
    [
        {
            "output_types": (tf.int64, tf.float32),
            "output_shapes": (tf.TensorShape([]), tf.TensorShape([None])),
        },
        {"output_signature": (tf.TensorSpec((), tf.int64), tf.TensorSpec((None,), tf.float32))},
    ],
)
def test_a_generator_has_a_signature(signature):
    made = Dataset.from_generator(counting, args=(tf.constant(3),), **signature)
    assert [(int(n), row.tolist()) for n, row in made] == [(0, []), (1, [1.0]), (2, [1.0, 1.0])]
    assert made.element_spec == (tf.TensorSpec((), tf.int64), tf.TensorSpec((None,), tf.float32))


def test_options_that_tune_are_taken():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    options.autotune.enabled = True
    options.experimental_optimization.map_parallelization = True
    options.threading.max_intra_op_parallelism = 1
    options.experimental_deterministic = False
    found = Dataset.range(2).with_options(options).options()
    assert found.deterministic is found.experimental_deterministic is False
    assert found.autotune.enabled is True
    assert found.autotune.cpu_budget is None
    assert found == options


def test_transformations_that_became_methods():
    x = tf.data.experimental
    twice = Dataset.range(4).apply(x.shuffle_and_repeat(4, count=2, seed=1))
    assert sorted(int(n) for n in twice) == [0, 0, 1, 1, 2, 2, 3, 3]
    doubled = Dataset.range(4).apply(x.map_and_batch(lambda n: 2 * n, 3, drop_remainder=True))
    assert [batch.tolist() for batch in doubled] == [[0, 2, 4]]
    assert [batch.tolist() for batch in doubled.apply(x.unbatch()).batch(2)] == [[0, 2], [4]]
    sums = Dataset.range(4).apply(x.scan(0, lambda s, n: (s + n, s + n)))
    assert [int(n) for n in sums.apply(x.take_while(lambda n: n < 3))] == [0, 1]
    numbered = Dataset.range(7, 9).apply(x.enumerate_dataset(1)).apply(x.prefetch_to_device("GPU"))
    assert [(int(a), int(b)) for a, b in numbered.apply(x.copy_to_device("GPU"))] == [
        (1, 7),
        (2, 8),
    ]
    turns = Dataset.range(2).apply(
        x.parallel_interleave(lambda n: Dataset.from_tensors(n).repeat(2), cycle_length=2)
    )
    assert [int(n) for n in turns] == [0, 1, 0, 1]
    assert [int(n) for n in x.Counter(3, 2).take(3)] == [3, 5, 7]
    assert x.get_structure(Dataset.range(2)) == tf.TensorSpec((), tf.int64)
    mixed = x.sample_from_datasets([Dataset.range(2), Dataset.range(2)], [1.0, 0.0], seed=0)
    assert len(list(mixed.take(2))) == 2
    turns = Dataset.from_tensor_slices(np.int64([0, 0, 1]))
    chosen = x.choose_from_datasets([Dataset.range(1), Dataset.range(5, 7)], turns)
    assert [int(n) for n in chosen] == [0, 5]  # what has ended is passed over, as TensorFlow does


def test_a_data_set_is_saved_by_the_older_function(tmp_path):
    tf.data.experimental.save(Dataset.range(3), str(tmp_path / "saved"))
    assert [int(n) for n in tf.data.experimental.load(str(tmp_path / "saved"))] == [0, 1, 2]


def test_a_single_element_is_the_only_one():
    assert int(tf.data.experimental.get_single_element(Dataset.range(7, 8))) == 7
    with pytest.raises(ValueError, match="one element, got several"):
        tf.data.experimental.get_single_element(Dataset.range(2))


def test_a_wrong_cardinality_is_refused():
    Dataset.range(2).apply(tf.data.experimental.assert_cardinality(2))
    with pytest.raises(ValueError, match="3 elements, but 2"):
        Dataset.range(3).apply(tf.data.experimental.assert_cardinality(2))


def test_a_compiled_function_in_map_may_ask_for_values():
    places = tf.function(lambda row: tf.where(row > 0)[:, 0])
    rows = tf.data.Dataset.from_tensor_slices([[1, 0, 2], [0, 0, 3]]).map(places)
    assert [row.tolist() for row in rows.as_numpy_iterator()] == [[0, 2], [2]]


def test_lists_that_functions_return_are_what_tensorflow_makes_of_them():
    # Recorded with TensorFlow 2.21.
    columns = Dataset.from_tensor_slices(["1,2.5,x", "3,4.5,y"]).map(
        lambda line: tf.io.decode_csv(line, [0, 0.0, ""])
    )
    assert [(a.numpy(), b.numpy(), c.numpy()) for a, b, c in columns] == [
        (1, 2.5, b"x"),
        (3, 4.5, b"y"),
    ]
    assert [spec.dtype.name for spec in columns.element_spec[:2]] == ["int32", "float32"]
    features = columns.map(lambda a, b, c: ([tf.cast(a, tf.float32), 2], [tf.identity(c), "z"]))
    number, text = next(iter(features))
    assert number.dtype == tf.float32
    assert number.numpy().tolist() == [1.0, 2.0]
    assert text.numpy().tolist() == [b"x", b"z"]
    pair = Dataset.range(1).map(
        lambda x: tf.numpy_function(lambda v: [v, np.float32(v)], [x], [tf.int64, tf.float32])
    )
    assert [part.dtype for part in next(iter(pair))] == [tf.int64, tf.float32]


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: ([x, tf.cast(x, tf.float32)], x),
        lambda x: {"a": [tf.cast(x, tf.int32), 2.5]},
        lambda x: ([tf.cast(x, tf.bool), 1], x),
    ],
)
def test_an_inner_list_of_several_types_is_refused(mixed):  # TypeErrors of TensorFlow
    with pytest.raises(rx.errors.UsageError, match="tf.cast"):
        list(Dataset.range(1).map(mixed))
    with pytest.raises(rx.errors.UsageError, match="tf.cast"):
        Dataset.from_tensors([tf.constant(1), tf.constant(2.0)])


@pytest.mark.parametrize(
    ("name", "expected"),  # recorded with TensorFlow 2.21
    [
        ("tensor_scatter_nd_update", [[0.0, 0.0], [1.0, 2.0]]),
        ("tensor_scatter_nd_add", [[0.0, 0.0], [1.0, 2.0]]),
        ("scatter_nd", [[0.0, 0.0], [0.0, 0.0]]),
        ("tensor_scatter_nd_max", [[0.0, 0.0], [1.0, 2.0]]),
    ],
)
def test_a_loop_that_writes_nothing_scatters_zeros(name, expected):
    def scattered(y, limit):
        places = tf.TensorArray(tf.int32, 1, dynamic_size=True)
        updates = tf.TensorArray(tf.float32, 1, dynamic_size=True)
        count = 0
        for row in tf.range(tf.shape(y)[0]):
            if y[row, 1] > limit:
                places = places.write(count, [row])
                updates = updates.write(count, tf.constant([5.0, 6.0]))
                count += 1
        if name == "scatter_nd":
            return tf.scatter_nd(places.stack(), updates.stack(), tf.shape(y))
        return getattr(tf, name)(y, places.stack(), updates.stack())

    rows = tf.constant([[0.0, 0.0], [1.0, 2.0]])
    (none,) = Dataset.from_tensors((rows, 9.0)).map(scattered)
    assert none.numpy().tolist() == expected
    if name == "tensor_scatter_nd_update":  # whether an element or a row is 0 is not known
        with pytest.raises(rx.errors.UsageError, match="element_shape"):
            list(Dataset.from_tensors((rows + 1, 9.0)).map(scattered))


@pytest.mark.parametrize(
    "use", [lambda x: x + 1, tf.reduce_sum, lambda x: x[0], tf.shape, lambda x: x, tf.function(abs)]
)
def test_zeros_of_unknown_shape_are_no_array(use):
    def read(x):
        return use(tf.TensorArray(tf.float32, 1, dynamic_size=True).stack())

    with pytest.raises((rx.errors.DataError, rx.errors.UsageError), match="element_shape"):
        list(Dataset.range(1).map(read))


def test_a_table_that_refuses_values_stays_as_it_is():
    table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, -1)
    table.insert([7], [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="2 keys"):
        table.insert([7, 8], [5])
    assert [each.tolist() for each in table.export()] == [[7], [1]]


@pytest.mark.parametrize(
    "shape", [np.array([4]), [np.int64(4)], tf.constant([4]), tf.TensorShape([4]), (4,)]
)
def test_shapes_of_padding_may_be_arrays(shape):
    rows = tf.data.Dataset.from_tensors([1, 2]).padded_batch(1, padded_shapes=shape)
    assert next(iter(rows)).numpy().tolist() == [[1, 2, 0, 0]]
    pairs = tf.data.Dataset.from_tensors({"a": [1, 2], "b": [3]})
    both = next(iter(pairs.padded_batch(1, padded_shapes={"a": shape, "b": np.array([2])})))
    assert both["a"].shape == (1, 4) and both["b"].tolist() == [[3, 0]]


def test_a_shape_of_padding_is_of_integers():
    rows = tf.data.Dataset.from_tensors([1, 2]).padded_batch(1, padded_shapes=np.array([4.0]))
    with pytest.raises(UsageError):
        next(iter(rows))
