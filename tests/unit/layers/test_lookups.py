"""StringLookup, IntegerLookup, Hashing, HashedCrossing, Discretization: Keras' own answers.

The expected numbers are those of the layers of Keras 3.15 with TensorFlow 2.21, but for hashes.
"""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

layers = rx.layers


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("int", [[1, 0, 1]]),
        ("one_hot", [[[0, 1, 0], [1, 0, 0], [0, 1, 0]]]),
        ("multi_hot", [[1, 1, 0]]),
        ("count", [[1, 2, 0]]),
        ("binary", [[1, 1, 0]]),
    ],
)
def test_texts_become_numbers(mode, expected):
    layer = layers.StringLookup(vocabulary=["a", "b"], output_mode=mode)
    result = layer([["a", "c", "a"]])
    assert result.tolist() == expected
    assert isinstance(result.numpy(), np.ndarray)
    assert layer.compute_output_shape((1, 3)) == result.shape


@pytest.mark.parametrize(
    "texts", [["b", "a"], np.array(["b", "a"]), np.array([b"b", b"a"], object), ("b", b"a")]
)
def test_texts_come_as_they_are(texts):
    assert layers.StringLookup(vocabulary=["a", "b"])(texts).tolist() == [2, 1]


def test_masked_texts_do_not_count():
    layer = layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot", mask_token="")
    assert layer.get_vocabulary() == ["[UNK]", "a", "b"]
    assert layer([["a", "", "a"]]).tolist() == [[0, 1, 0]]
    masked = layers.StringLookup(vocabulary=["a"], mask_token="")
    assert masked(["", "a", "x"]).tolist() == [0, 2, 1]


def test_given_weights_count():
    layer = layers.StringLookup(
        vocabulary=["a", "b"], output_mode="tf_idf", idf_weights=[0.5, 0.25]
    )
    np.testing.assert_allclose(layer([["a", "c", "a"]]), [[0.375, 1.0, 0.0]])


def test_learnt_weights_count():
    layer = layers.StringLookup(output_mode="tf_idf")
    layer.adapt([["a", "b", "a"], ["a", "d", "c"]])
    assert layer.get_vocabulary() == ["[UNK]", "a", "d", "c", "b"]
    expected = [[0.6475668, 0.51082563, 0.0, 0.6931472, 0.0]]
    np.testing.assert_allclose(layer([["a", "c", "z"]]), expected, rtol=1e-6)


@pytest.mark.parametrize("as_data_set", [False, True])
def test_the_most_frequent_texts_are_learnt(as_data_set):
    data = ["b b", "a", "c", "b b", "a", "c", "d"]
    if as_data_set:
        data = rx.data.Dataset.from_tensor_slices(data).batch(3)
    layer = layers.StringLookup(max_tokens=4)
    layer.adapt(data)
    assert layer.get_vocabulary() == ["[UNK]", "c", "b b", "a"]
    assert layer.vocabulary_size() == 4


def test_some_steps_are_learnt_of():
    layer = layers.StringLookup()
    layer.adapt(rx.data.Dataset.from_tensor_slices(["a", "b"]).batch(1).repeat(), steps=1)
    assert layer.get_vocabulary(include_special_tokens=False) == ["a"]


def test_indices_become_texts():
    layer = layers.StringLookup(vocabulary=["a", "b"], invert=True, mask_token="")
    assert layer.get_vocabulary() == ["", "[UNK]", "a", "b"]
    assert list(layer(np.array([0, 1, 2, 7])).view(np.ndarray)) == ["", "[UNK]", "a", "[UNK]"]


def test_a_vocabulary_may_be_in_a_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("a\nb\n")
    assert layers.StringLookup(vocabulary=str(path))(["b"]).tolist() == [2]


def test_unknown_texts_share_several_indices():
    layer = layers.StringLookup(vocabulary=["a"], num_oov_indices=3)
    found = layer([f"word {number}" for number in range(50)] + ["a"]).tolist()
    assert set(found[:-1]) == {0, 1, 2}
    assert found[-1] == 3


@pytest.mark.parametrize("convert", [np.asarray, jax.numpy.asarray])
def test_integers_become_indices(convert):
    assert layers.IntegerLookup(vocabulary=[5, 7])(convert([5, 7, 9])).tolist() == [1, 2, 0]
    several = layers.IntegerLookup(vocabulary=[5, 7], num_oov_indices=3)
    assert several(convert([5, 7, 9, 10, 11, -4])).tolist() == [3, 4, 0, 1, 2, 2]
    row = layers.IntegerLookup(vocabulary=[5, 7], output_mode="count")
    assert row(convert([[5, 5, 9]])).tolist() == [[1, 2, 0]]
    single = layers.IntegerLookup(vocabulary=[5, 7], output_mode="one_hot")
    assert single(convert([[5], [9]])).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_integers_are_looked_up_in_compiled_code():
    layer = layers.IntegerLookup(vocabulary=[5, 7])
    assert jax.jit(layer)(jax.numpy.array([7, 1])).tolist() == [2, 0]


def test_integers_of_64_bits_stay_whole():
    large = 2**40 + 1
    assert layers.IntegerLookup(vocabulary=[large])(np.array([large, 1])).tolist() == [1, 0]
    assert layers.IntegerLookup(vocabulary=[large], invert=True)([1, 0]).tolist() == [large, -1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary": ["a", "a"]}, r"\['a'\]"),
        ({"vocabulary": ["a", "b"], "max_tokens": 2}, "`max_tokens`.*3"),
        ({"vocabulary": []}, "vocabulary is empty"),
        ({"vocabulary": ["a"], "idf_weights": [1.0]}, "`idf_weights`"),
        ({"vocabulary": ["a"], "output_mode": "tf_idf"}, "`idf_weights`"),
        ({"max_tokens": 1}, "max_tokens=1"),
        ({"output_mode": "many"}, "`output_mode`.*'one_hot'.*'many'"),
        ({"sparse": True, "output_mode": "count"}, "`sparse`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(UsageError, match=message):
        layers.StringLookup(**arguments)


def test_an_unknown_text_without_a_place_is_refused():
    with pytest.raises(UsageError, match=r"\['z'\]"):
        layers.StringLookup(vocabulary=["a"], num_oov_indices=0)(["z"])
    with pytest.raises(UsageError, match=r"\[3\].*num_oov_indices"):
        layers.IntegerLookup(vocabulary=[1], num_oov_indices=0)([3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: layers.StringLookup(vocabulary=["a"]).adapt(["b"]), "without `vocabulary`"),
        (lambda: layers.StringLookup(output_mode="count")([["a"]]), r"`adapt\(data\)`"),
        (lambda: layers.Hashing(1, mask_value=""), "`num_bins`.*2"),
    ],
)
def test_calls_that_do_not_fit_are_refused(call, message):
    with pytest.raises(UsageError, match=message):
        call()


@pytest.mark.parametrize("mode", ["int", "tf_idf"])
def test_a_learnt_vocabulary_is_saved(tmp_path, mode):
    text = keras.Input((2,), dtype="string")
    layer = layers.StringLookup(output_mode=mode)
    layer.adapt([["a", "line\nbreak"], ["a", "c"]])
    model = keras.Model(text, layer(text))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    texts = np.array([["a", "line\nbreak"]], object)
    np.testing.assert_array_equal(again(texts), model(texts))
    assert again.layers[-1].get_vocabulary() == layer.get_vocabulary()


def test_hashes_are_below_the_bound_and_the_same_for_the_same():
    layer = layers.Hashing(4, mask_value="")
    found = layer([["a"], ["b"], [""], ["a"]])
    assert found.shape == (4, 1)
    assert found[0, 0] == found[3, 0]
    assert found[2, 0] == 0
    assert set(layer([f"word {number}" for number in range(50)]).tolist()) == {1, 2, 3}
    assert layers.Hashing(5, output_mode="count")(np.array([[3, 3]])).max() == 2
    assert (layers.Hashing(97, salt=1)(["a", "b"]) != layers.Hashing(97)(["a", "b"])).all()


def test_pairs_are_hashed():
    layer = layers.HashedCrossing(1000)
    found = layer((["a", "b", "a"], [1, 1, 1])).tolist()
    assert found[0] == found[2] != found[1]
    assert layers.HashedCrossing.from_config(layer.get_config())((["a"], [1])).tolist() == found[:1]


def test_bins_are_learnt():
    data = np.array([[-1.5, 1.0, 3.4, 0.5], [0.0, 3.0, 1.3, 0.0]])
    layer = layers.Discretization(num_bins=4, epsilon=0.01)
    layer.adapt(rx.data.Dataset.from_tensor_slices(data).batch(2))
    np.testing.assert_allclose(layer.bin_boundaries, [0.0, 0.5, 1.3])
    assert layer(data).tolist() == [[0, 2, 3, 2], [1, 3, 3, 1]]
