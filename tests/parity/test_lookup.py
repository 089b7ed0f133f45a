"""`tf.lookup`: tables, with the results of TensorFlow."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

look = tf.lookup


def test_a_table_of_texts_in_a_pipeline():
    words = look.KeyValueTensorInitializer(tf.constant(["a", "b"]), [1, 2])
    table = look.StaticHashTable(words, default_value=-1)
    rows = tf.data.Dataset.from_tensor_slices(np.array(["b", "c"], object)).map(table.lookup)
    assert [int(row) for row in rows] == [2, -1]
    assert table.lookup([[b"a"], [b"z"]]).tolist() == [[1], [-1]]
    assert table["b"].numpy() == 2
    assert int(table.size()) == 2
    assert (table.key_dtype, table.value_dtype) == (tf.string, tf.int32)
    back = look.StaticHashTable(look.KeyValueTensorInitializer([1, 2], ["a", "b"]), "?")
    assert back.lookup([2, 7]).numpy().tolist() == [b"b", b"?"]


def test_a_table_of_numbers_in_compiled_code():
    keys = look.KeyValueTensorInitializer([30, 10, 20], [3.0, 1.0, 2.0])
    table = look.StaticHashTable(keys, default_value=-1.0)
    asked = jnp.array([[10, 20], [30, 5], [40, 15]])
    expected = [[1, 2], [3, -1], [-1, -1]]
    assert table.lookup(asked).tolist() == expected
    assert tf.function(table.lookup)(asked).tolist() == expected
    with pytest.raises(rx.errors.UsageError):
        look.StaticHashTable(look.KeyValueTensorInitializer([1, 1], [1, 2]), 0)


def test_tables_of_files(tmp_path):
    path = tmp_path / "words"
    path.write_text("emerson 10\nlake 20\npalmer 30\n")
    whole, number = look.TextFileIndex.WHOLE_LINE, look.TextFileIndex.LINE_NUMBER
    columns = look.TextFileInitializer(str(path), tf.string, 0, tf.int64, 1, delimiter=" ")
    assert look.StaticHashTable(columns, -1).lookup(["lake", "elp"]).tolist() == [20, -1]
    lines = look.TextFileInitializer(str(path), tf.string, whole, tf.int64, number, vocab_size=2)
    assert look.StaticHashTable(lines, -1).lookup(["lake 20", "palmer 30"]).tolist() == [1, -1]


def test_words_that_are_not_there_have_the_last_numbers():
    words = look.KeyValueTensorInitializer(["a", "b"], tf.range(2))
    table = look.StaticVocabularyTable(words, num_oov_buckets=3)
    found = table.lookup(["b", "x", "x", "a"]).tolist()
    assert found[0] == 1 and found[3] == 0 and found[1] == found[2] and 2 <= found[1] < 5
    assert int(table.size()) == 5
    numbers = look.StaticVocabularyTable(look.KeyValueTensorInitializer([7, 9], [0, 1]), 2)
    asked = np.array([9, 4, 5], "int32")
    assert tf.function(numbers.lookup)(jnp.asarray(asked)).tolist() == [1, 2, 3]
    assert numbers.lookup(asked).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    "table",
    [
        lambda: look.experimental.MutableHashTable(tf.string, tf.int64, -1),
        lambda: look.experimental.DenseHashTable(tf.string, tf.int64, -1, "", "$"),
    ],
)
def test_tables_that_change(table):
    table = table()
    table.insert(["a", "b"], [1, 2])
    table.insert(["b", "c"], [4, 5])
    assert table.lookup(["a", "b", "z"]).tolist() == [1, 4, -1]
    table.remove(["a", "z"])
    keys, values = table.export()
    assert dict(zip(keys.numpy().tolist(), values.tolist(), strict=True)) == {b"b": 4, b"c": 5}
    assert int(table.size()) == 2


def test_values_may_be_rows_and_compiled_code_is_told_that_they_change():
    table = look.experimental.MutableHashTable(tf.int64, tf.float32, [0.0, 0.0])
    table.insert([5, 6], [[1.0, 2.0], [3.0, 4.0]])
    assert table.lookup([6, 7]).tolist() == [[3, 4], [0, 0]]
    with pytest.raises(rx.errors.UsageError):
        tf.function(table.lookup)(jnp.array([5]))
