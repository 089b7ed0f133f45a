"""TextVectorization: Keras' own answers, of Keras 3.15 with TensorFlow 2.21."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

TextVectorization = rx.layers.TextVectorization
THREE = ["foo bar", "bar baz", "baz bada boom"]


def test_words_become_indices():
    layer = TextVectorization()
    layer.adapt(THREE)
    assert layer.get_vocabulary() == ["", "[UNK]", "baz", "bar", "foo", "boom", "bada"]
    assert layer(["Foo qux, bar!", "qux  baz x y"]).tolist() == [[4, 1, 3, 0], [1, 2, 1, 1]]
    assert layer([["foo"]]).tolist() == [[4]]


def test_rows_have_one_length():
    layer = TextVectorization(vocabulary=["foo", "bar"], output_sequence_length=2)
    assert layer(["foo", "bar foo foo", ""]).tolist() == [[2, 0], [3, 2], [0, 0]]
    assert layer.compute_output_shape((None, 1)) == (None, 2)


def test_ngrams_are_tokens():
    layer = TextVectorization(
        ngrams=2, output_mode="multi_hot", max_tokens=12, pad_to_max_tokens=True
    )
    layer.adapt(THREE)
    assert layer.get_vocabulary()[1:5] == ["baz", "bar", "foo bar", "foo"]
    expected = [[1, 0, 1, 0, 1, *[0] * 7], [1, 1, *[0] * 10]]
    assert layer(["Foo qux, bar!", "qux  baz"]).tolist() == expected
    pairs = TextVectorization(vocabulary=["foo bar"], ngrams=(2,))
    assert pairs(["foo bar foo"]).tolist() == [[2, 1]]


def test_characters_are_tokens():
    layer = TextVectorization(split="character", output_sequence_length=4)
    layer.adapt(["aab"])
    assert layer([["aabc b"]]).tolist() == [[2, 2, 3, 1]]
    assert layer("ab").tolist() == [2, 3, 0, 0]


def test_whole_texts_may_be_tokens():
    layer = TextVectorization(vocabulary=["foo", "bar"], split=None, standardize="lower")
    assert layer(["FOO", "x"]).tolist() == [2, 1]
    assert layer([["FOO", "x"]]).tolist() == [[2, 1]]


def test_functions_of_the_user():
    layer = TextVectorization(
        vocabulary=["a", "b"],
        standardize=lambda texts: np.char.replace(texts, "<br>", ""),
        split=lambda texts: [text.split(";") for text in texts],
    )
    assert layer(["a<br>;b", "b"]).tolist() == [[2, 3], [3, 0]]


def test_in_a_data_set_on_batches_and_single_texts():
    layer = TextVectorization(vocabulary=["good", "bad"], output_sequence_length=2)
    texts = rx.data.Dataset.from_tensor_slices((["good", "bad bad"], [1, 0]))
    single = texts.map(lambda text, label: (layer(text), label))
    assert [row.tolist() for row, _ in single] == [[2, 0], [3, 3]]
    (batch,) = texts.batch(2).map(lambda text, label: (layer(text), label))
    assert batch[0].tolist() == [[2, 0], [3, 3]]
    assert type(batch[0]) is np.ndarray


@keras.saving.register_keras_serializable("test")
def shouting(texts):
    return np.char.upper(texts)


def test_the_configuration_makes_the_same_layer():
    layer = TextVectorization(vocabulary=["A"], standardize=shouting, ngrams=(1, 2))
    again = TextVectorization.from_config(layer.get_config())
    assert again(["a b"]).tolist() == layer(["a b"]).tolist() == [[2, 1, 1]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"standardize": "upper"},
        {"split": "lines"},
        {"ragged": True},
        {"output_mode": "count", "output_sequence_length": 3},
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments):
    with pytest.raises(UsageError, match=f"`{list(arguments)[-1]}`"):
        TextVectorization(**arguments)


def test_several_texts_for_an_example_are_refused():
    with pytest.raises(UsageError, match=r"shape \(1, 2\)"):
        TextVectorization(vocabulary=["a"])([["a", "b"]])


@pytest.mark.parametrize("shape", [{"input_shape": (1,)}, {"batch_input_shape": (None, 1)}])
def test_an_input_shape_as_in_keras_2_makes_no_input_of_numbers(shape):
    layer = TextVectorization(vocabulary=["foo", "bar"], **shape)
    model = keras.Sequential([layer, keras.layers.Embedding(4, 2)])
    assert model(["foo", "bar foo"]).shape == (2, 2, 2)
