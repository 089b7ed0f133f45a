"""`tf.strings`: texts and arrays of texts, with the results of TensorFlow."""

import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

s = tf.strings


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: s.lower("AÄ"), "aÄ"),
        (lambda: s.lower("AÄ", encoding="utf-8"), "aä"),
        (lambda: s.upper(["aä"], encoding="utf-8"), ["AÄ"]),
        (lambda: s.upper(b"abc"), b"ABC"),
        (lambda: s.upper(tf.constant(b"abc")), b"ABC"),
        (lambda: s.strip([" a ", "b\n", "\u00a0c "]), ["a", "b", "\u00a0c"]),
        (lambda: s.length("äb"), 3),
        (lambda: s.length(["äb"], unit="UTF8_CHAR"), [2]),
        (lambda: s.substr("hello", 1, 3), "ell"),
        (lambda: s.substr("äbc", 1, 1, unit="UTF8_CHAR"), "b"),
        (lambda: s.regex_replace("a1b22", "[0-9]+", "#"), "a#b#"),
        (lambda: s.regex_replace("a1b2", "([0-9])", r"<\1>", replace_global=False), "a<1>b2"),
        (lambda: s.regex_full_match(["aab", "abc"], "a+b"), [True, False]),
        (lambda: s.split("a b  c\u00a0d"), ["a", "b", "c\u00a0d"]),
        (lambda: s.split("a,b,c", sep=",", maxsplit=1), ["a", "b,c"]),
        (lambda: s.bytes_split("ab"), [b"a", b"b"]),
        (lambda: s.unicode_split("äb"), ["ä", "b"]),
        (lambda: s.unicode_decode("äb€", "UTF-8"), [228, 98, 8364]),
        (lambda: s.unicode_decode(b"\xe4", "latin-1"), [228]),
        (lambda: s.unicode_encode([228, 98]), b"\xc3\xa4b"),
        (lambda: s.unicode_encode([]), b""),
        (lambda: s.unicode_encode(np.zeros((2, 0), np.int32)), [b"", b""]),
        (lambda: s.unicode_encode([65, -1, 0xD800]), b"A\xef\xbf\xbd\xef\xbf\xbd"),
        (lambda: s.unicode_encode([0x110000, 65], "UTF-8", "ignore"), b"A"),
        (lambda: s.unicode_encode([0x110000, 65], "UTF-8", "replace", 66), b"BA"),
        (lambda: s.unicode_encode([[[65, 66], [67, 68]]]), [[b"AB", b"CD"]]),
        (lambda: s.unicode_encode(tf.ragged.constant([[65, 66], [67]])), [b"AB", b"C"]),
        (lambda: s.unicode_encode([228], "UTF-16-BE"), b"\x00\xe4"),
        (lambda: s.unicode_transcode(["ä"], "UTF-8", "UTF-16-BE"), [b"\x00\xe4"]),
        (lambda: s.ngrams(["A", "B", "C"], 2), ["A B", "B C"]),
        (lambda: s.ngrams(["A", "B"], 3), []),
        (lambda: s.ngrams(["A", "B"], 3, preserve_short_sequences=True), ["A B"]),
        (
            lambda: s.ngrams([["A", "B"]], [1, 2], "|", ("<", ">")),
            [["A", "B", "<|A", "A|B", "B|>"]],
        ),
        (lambda: s.join(["a", ["b", "c"]], separator="-"), ["a-b", "a-c"]),
        (lambda: s.reduce_join([["a", "b"], ["c", "d"]], axis=1, separator="+"), ["a+b", "c+d"]),
        (lambda: s.reduce_join([["a", "b"], ["c", "d"]], axis=0, keepdims=True), [["ac", "bd"]]),
        (lambda: s.reduce_join([["a", "b"], ["c", "d"]]), "abcd"),
        (lambda: s.reduce_join([["a", "b"], ["c", "d"]], axis=[0, 1]), "acbd"),
        (lambda: s.reduce_join([["a", "b"], ["c", "d"]], [0, 1], keepdims=True), [["acbd"]]),
        (lambda: s.to_number(["1.5", "2"]), [1.5, 2.0]),
        (lambda: s.to_number("7", out_type="int32"), 7),
        (lambda: s.to_number(tf.constant(b"7")), 7.0),
        (lambda: s.as_string([1.5, 2.0], precision=2), ["1.50", "2.00"]),
        (lambda: s.as_string(3, width=4, fill="0"), "0003"),
        (lambda: s.as_string(1500.0, scientific=True, precision=1), "1.5e+03"),
        (lambda: s.as_string(True), "true"),
        (lambda: s.as_string(1.5), "1.500000"),
        (lambda: s.format("a: {}, b: {}", (np.arange(9), 1.5)), "a: [0 1 2 ... 6 7 8], b: 1.5"),
    ],
)
def test_results(found, expected):
    result = found()
    assert isinstance(result, np.ndarray)
    assert result.tolist() == expected


def test_splitting_an_array_gives_rows_of_their_own_length():
    rows = s.split(["a b", "c"])
    assert [row.tolist() for row in rows] == [["a", "b"], ["c"]]
    with pytest.raises(rx.errors.UsageError):
        s.split([["a b"], ["c"]])


@pytest.mark.parametrize("text", ["1_000", "a"])
def test_what_is_no_number(text):
    with pytest.raises(ValueError, match=text):
        s.to_number(text)


def test_buckets_are_always_the_same():
    found = s.to_hash_bucket_fast(["a", "b", "a"], 100)
    assert found[0] == found[2] and (found >= 0).all() and (found < 100).all()
    assert s.to_hash_bucket("a", 1) == 0


def test_in_a_pipeline():
    texts = rx.data.Dataset.from_tensor_slices(["A b", "C"]).map(lambda x: s.lower(x))
    assert [str(text) for text in texts] == ["a b", "c"]


TEXTS = np.array([["a", "B"], ["c", "a"]], object)


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda text: tf.expand_dims(text, -1), [[["a"], ["B"]], [["c"], ["a"]]]),
        (lambda text: tf.concat([text, text], 1)[:, 1:3], [["B", "a"], ["a", "c"]]),
        (lambda text: tf.where(tf.equal(text, "B"), tf.constant("b"), text), [[*"ab"], [*"ca"]]),
        (lambda text: s.join([s.lower(text), s.upper(text)]), [["aA", "bB"], ["cC", "aA"]]),
        (lambda text: s.length(s.regex_replace(text, "a", "aa")), [[2, 1], [1, 2]]),
        (lambda text: tf.cast(tf.equal(text, "a"), tf.float32), [[1, 0], [0, 1]]),
    ],
)
def test_of_the_text_of_a_model(compute, expected):
    text = tf.keras.Input((2,), dtype=tf.string)
    made, expected = compute(text), np.array(expected, object)
    if made.dtype == "string":
        lookup = tf.keras.layers.StringLookup(vocabulary=np.unique(expected).tolist())
        made, expected = lookup(made), lookup(expected)
    model = tf.keras.Model(text, made)
    np.testing.assert_array_equal(model.predict(TEXTS, verbose=0), expected)
    again = tf.keras.models.model_from_json(model.to_json())
    np.testing.assert_array_equal(again.predict(TEXTS, verbose=0), expected)


def test_the_text_of_a_model_is_not_split():
    with pytest.raises(rx.errors.UsageError, match="TextVectorization"):
        s.split(tf.keras.Input((), dtype=tf.string))
