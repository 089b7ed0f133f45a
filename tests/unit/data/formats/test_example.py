"""tf.train.Example: TensorFlow's bytes, both ways; what parsing gives and refuses."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.data._formats import example
from replicax.data._formats.example import (
    FixedLenFeature,
    VarLenFeature,
    make_example,
    parse_example,
    parse_single_example,
)

# tf.train.Example of TensorFlow 2.21 with an empty feature "none", SerializeToString(True).
VALUES = {"age": [29, -1], "name": [b"Ada", b"\x00\xff"], "score": [0.5, -2.0], "none": []}
FROM_TENSORFLOW = bytes.fromhex(
    "0a4e0a160a03616765120f1a0d0a0b1dffffffffffffffffff010a130a046e616d65120b0a090a034164610a0200"
    "ff0a080a046e6f6e6512000a150a0573636f7265120c120a0a080000003f000000c0"
)
# Made by hand: the numbers 29 and 65535 of "age" each with a tag of their own, not packed.
NOT_PACKED = bytes.fromhex("0a110a0f0a0361676512081a06081d08ffff03")


def one(value, feature):
    return parse_single_example(make_example({"x": value}), {"x": feature})["x"]


def batch(values, feature):
    return parse_example([make_example({"x": value}) for value in values], {"x": feature})["x"]


def check(found, wanted):
    np.testing.assert_array_equal(found, wanted)
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape


def test_the_bytes_are_tensorflows():
    assert make_example(VALUES) == FROM_TENSORFLOW


def test_what_tensorflow_wrote_is_read():
    features = {
        "age": FixedLenFeature((2,), np.int64),
        "name": FixedLenFeature([2], bytes),
        "score": FixedLenFeature((1, 2), np.float32),
        "none": VarLenFeature(np.float32),
    }
    found = parse_single_example(FROM_TENSORFLOW, features)
    assert list(found) == list(features)
    check(found["age"], np.array([29, -1]))
    check(found["name"], np.array([b"Ada", b"\x00\xff"], object))
    check(found["score"], np.array([[0.5, -2]], np.float32))
    check(found["none"], np.zeros(0, np.float32))


def test_numbers_that_are_not_packed_are_read():
    found = parse_single_example(NOT_PACKED, {"age": VarLenFeature(int)})
    check(found["age"], np.array([29, 65535]))


@pytest.mark.parametrize(
    ("value", "feature", "wanted"),
    [
        (3, FixedLenFeature((), int), np.int64(3)),
        (True, FixedLenFeature((), "int64"), np.int64(1)),
        (np.uint8(255), FixedLenFeature((), np.int64), np.int64(255)),
        (0.1, FixedLenFeature((), float), np.float32(0.1)),
        (np.float64(0.1), FixedLenFeature((), np.dtype("float32")), np.float32(0.1)),
        (np.arange(4).reshape(2, 2), FixedLenFeature((2, 2), int), np.array([[0, 1], [2, 3]])),
        (jnp.arange(2), FixedLenFeature((2,), int), np.array([0, 1])),
        ([1, 0.5], FixedLenFeature(2, float), np.array([1, 0.5], np.float32)),
        ([1, 0.5], VarLenFeature(float), np.array([1, 0.5], np.float32)),
        (7, VarLenFeature(int), np.array([7])),
        ([], VarLenFeature(int), np.zeros(0, np.int64)),
        (np.zeros(0, np.int64), FixedLenFeature((0,), int), np.zeros(0, np.int64)),
        (["ä", b"\x00"], VarLenFeature(bytes), np.array(["ä".encode(), b"\x00"], object)),
        (np.array(["a", "b"]), FixedLenFeature((1, 2), bytes), np.array([[b"a", b"b"]], object)),
        ([b"a\x00"], FixedLenFeature((1,), "string"), np.array([b"a\x00"], object)),
        ([2**63 - 1, -(2**63)], VarLenFeature(int), np.array([2**63 - 1, -(2**63)])),
    ],
)
def test_values_come_back_with_the_shape_and_type_asked_for(value, feature, wanted):
    check(one(value, feature), wanted)


@pytest.mark.parametrize("example", [make_example({}), make_example({"x": []}), b""])
def test_a_default_stands_for_a_missing_feature(example):
    features = {
        "x": FixedLenFeature((2,), float, default_value=[1, 2]),
        "y": FixedLenFeature((), bytes, b"none"),
        "z": VarLenFeature(bytes),
    }
    found = parse_single_example(example, features)
    check(found["x"], np.array([1, 2], np.float32))
    assert found["y"] == b"none"
    check(found["z"], np.zeros(0, object))


def test_a_default_is_not_shared_between_examples():
    feature = FixedLenFeature((2,), int, np.array([1, 2]))
    found = parse_single_example(b"", {"x": feature})["x"]
    found[0] = 5
    check(parse_single_example(b"", {"x": feature})["x"], np.array([1, 2]))


def test_a_batch_is_stacked():
    check(batch([[1, 2], [3, 4]], FixedLenFeature((2,), int)), np.array([[1, 2], [3, 4]]))
    check(batch([5, 6], FixedLenFeature((), int)), np.array([5, 6]))
    check(batch([b"a\x00", b""], FixedLenFeature((), bytes)), np.array([b"a\x00", b""], object))
    check(batch([[]], FixedLenFeature((), int, 3)), np.array([3]))


def test_rows_of_a_batch_are_filled_up_to_the_longest():
    check(batch([[1], [], [2, 3]], VarLenFeature(int)), np.array([[1, 0], [0, 0], [2, 3]]))
    check(batch([[0.5], []], VarLenFeature(float)), np.array([[0.5], [0]], np.float32))
    wanted = np.array([[b"a", b""], [b"b", b"c"]], object)
    check(batch([["a"], ["b", "c"]], VarLenFeature(bytes)), wanted)


FEATURES = {
    "age": FixedLenFeature((2,), int, default_value=[7, 8]),
    "name": VarLenFeature(bytes),
    "score": VarLenFeature(float),
    "none": FixedLenFeature((), bytes, default_value="missing"),
}


def _parsed(records, features):
    """What parsing gives, or the error and what it says."""
    try:
        return repr({name: v.tolist() for name, v in parse_example(records, features).items()})
    except rx.errors.ReplicaxError as error:
        return str(error)


@pytest.mark.parametrize("damage", [None, 1, 2])
def test_the_kernel_reads_what_the_library_of_messages_reads(damage, monkeypatch):
    rng = np.random.default_rng(0)
    records = [
        FROM_TENSORFLOW,
        b"",
        NOT_PACKED[:0],
        make_example({"other": 1, "score": [0.5] * 300}),
    ]
    records += [make_example({**VALUES, "age": [-(2**63), 2**63 - 1], "x" * 200: "y"})]
    batches = [records]
    if damage:  # bytes are other ones, or missing; together they differ in hundreds of places
        for _ in range(400):
            broken = bytearray(records[rng.choice([0, 4])])
            broken[rng.integers(len(broken))] = rng.choice([0, 1, 2, 8, 10, 18, 26, 127, 255])
            batches.append([bytes(broken[: len(broken) if damage == 1 else rng.integers(1, 200)])])
        batches.append([NOT_PACKED])
    by_kernel = [_parsed(batch, FEATURES) for batch in batches]
    monkeypatch.setattr(example, "by_kernel", lambda records, kinds: None)
    assert by_kernel == [_parsed(batch, FEATURES) for batch in batches]
    assert damage or eval(by_kernel[0])["age"] == [
        [29, -1],
        [7, 8],
        [7, 8],
        [7, 8],
        [-(2**63), 2**63 - 1],
    ]


def test_a_batch_may_be_an_object_array():
    records = np.array([make_example({"x": 1}), make_example({"x": 2})], object)
    check(parse_example(records, {"x": FixedLenFeature((), int)})["x"], np.array([1, 2]))


def test_an_empty_batch_has_no_rows():
    check(batch([], FixedLenFeature((2,), int)), np.zeros((0, 2), np.int64))
    check(batch([], VarLenFeature(bytes)), np.zeros((0, 0), object))


def test_a_missing_feature_is_an_error():
    examples = [make_example({"x": 1, "y": 2}), make_example({"y": 2})]
    with pytest.raises(rx.errors.UsageError, match="Example 1.*'x'.*default_value") as error:
        parse_example(examples, {"x": FixedLenFeature((), int)})
    assert "Example 1 has no 'x', only ['y']" in str(error.value)


@pytest.mark.parametrize("feature", [FixedLenFeature((), int), VarLenFeature(int)])
@pytest.mark.parametrize(
    ("value", "kind"), [(0.5, "float_list"), (np.zeros(0), "float_list"), (b"x", "bytes_list")]
)
def test_another_type_is_an_error(feature, value, kind):
    with pytest.raises(rx.errors.UsageError, match="'x' of example 0.*int64") as error:
        one(value, feature)
    assert f"'x' of example 0 is a {kind}" in str(error.value)


@pytest.mark.parametrize("value", [[1, 2], np.zeros(0, int)])
def test_another_number_of_values_is_an_error(value):
    with pytest.raises(rx.errors.UsageError, match=r"'x' of example 0.*\(3,\)") as error:
        one(value, FixedLenFeature((3,), int, [1, 2, 3]))
    assert f"'x' of example 0 has {len(value)} values" in str(error.value)


@pytest.mark.parametrize("record", [b"\xff\xff", FROM_TENSORFLOW[:-1]])
def test_bytes_that_are_no_example_are_an_error(record):
    with pytest.raises(rx.errors.CorruptRecord, match="Record 1.*make_example") as e:
        parse_example([b"", record], {"x": VarLenFeature(int)})
    assert f"({len(record)} bytes)" in str(e.value)


@pytest.mark.parametrize(
    "value", [None, 1j, 2**63, [[1], [2, 3]], [b"a", 1], {"a": 1}, np.zeros(2, "datetime64[s]")]
)
def test_other_values_cannot_be_stored(value):
    with pytest.raises(rx.errors.UsageError, match="'x'.*64 bits") as error:
        make_example({"x": value})
    assert type(value).__name__ in str(error.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    # Not cleared: classes that other tests have belong to the messages that are kept.
    not_kept = example.messages.__wrapped__
    monkeypatch.setattr("replicax.data._formats.example.messages", not_kept)
    with pytest.raises(rx.errors.UsageError, match=r"protobuf.*replicax\[data\]"):
        make_example({})
