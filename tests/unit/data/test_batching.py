"""Between elements and batches: batch, padded_batch, unbatch, rebatch, window.

Where the comment says so, the values were recorded from tf.data 2.21.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset
UsageError = rx.errors.UsageError


def listed(ds):
    return [jax.tree.map(lambda leaf: leaf.tolist(), batch) for batch in ds]


def ragged():
    """[0], [0, 1], … five int32 arrays."""
    return Dataset.from_generator(lambda: (np.arange(n + 1, dtype=np.int32) for n in range(5)))


def with_sizes():
    return ragged().map(lambda x: (x, np.int32(x.size)))


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    "rows",
    [
        {"b": np.arange(3), "a": {"c": np.arange(6.0).reshape(3, 2)}},
        Point(np.arange(3), np.array([True, False, True])),
        (np.arange(3), (np.ones((3, 2, 2), np.float16), None), np.array(["a", "b", "c"], object)),
        (np.arange(3, dtype=jnp.bfloat16), np.arange(3) * 1j),
    ],
)
@pytest.mark.parametrize("way", [lambda ds: ds, lambda ds: ds.map(lambda *parts: rebuilt(parts))])
def test_nests_of_all_types_come_through(rows, way):
    (batch,) = way(Dataset.from_tensor_slices(rows)).batch(3)
    assert jax.tree.structure(batch) == jax.tree.structure(rows)
    for leaf, expected in zip(jax.tree.leaves(batch), jax.tree.leaves(rows), strict=True):
        assert leaf.dtype == expected.dtype
        assert leaf.tolist() == expected.tolist()


def rebuilt(parts):
    """The element that `map` took apart for its function."""
    return parts[0] if len(parts) == 1 else parts


def test_bytes_keep_their_zeros_at_the_end():
    (batch,) = Dataset.from_tensor_slices([b"a\0", b"\0", b""]).batch(3)
    assert batch.tolist() == [b"a\0", b"\0", b""]
    (batch,) = Dataset.from_source([b"a\0", b"\0", b""]).batch(3)
    assert batch.tolist() == [b"a\0", b"\0", b""]


def test_arrays_of_jax_are_batched_in_host_memory():
    ds = Dataset.range(2).map(lambda x: jnp.full((2,), x, jnp.bfloat16)).batch(2)
    (batch,) = ds
    assert isinstance(batch, np.ndarray)
    assert (batch.dtype, batch.tolist()) == (jnp.bfloat16, [[0, 0], [1, 1]])


@pytest.mark.parametrize(
    "elements",
    [
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2), np.zeros((2, 1))],
        [np.float32(0), np.zeros(1)],
        [np.zeros(2), (1, 2)],
        [(1, 2), (1, 2, 3)],
        [(1, None), (1, 2)],
        [(1, 2), (1, None)],
        [{"a": 1}, {"b": 1}],
        [{"a": 1}, 1],
        [1, "a"],
        ["a", 1],
    ],
)
def test_elements_that_differ_make_no_batch(elements):
    ds = Dataset.from_generator(lambda: iter(elements))
    with pytest.raises(UsageError, match="shape.*padded_batch"):
        list(ds.batch(2))
    assert len(list(ds.batch(1))) == 2


def test_the_error_shows_what_differs():
    ds = Dataset.from_source([[1, 2], [1, 2, 3]]).batch(2)
    with pytest.raises(UsageError, match=r"shape=\(2,\), dtype=int32\); ArraySpec\(shape=\(3,\)"):
        next(iter(ds))


def test_elements_are_filled_up_to_the_longest_of_a_batch():  # as tf.data
    assert listed(ragged().padded_batch(2)) == [
        [[0, 0], [0, 1]],
        [[0, 1, 2, 0], [0, 1, 2, 3]],
        [[0, 1, 2, 3, 4]],
    ]
    assert listed(ragged().padded_batch(2, padded_shapes=[-1], drop_remainder=True)) == [
        [[0, 0], [0, 1]],
        [[0, 1, 2, 0], [0, 1, 2, 3]],
    ]


def test_a_padded_shape_may_be_of_numpys_integers():  # as tf.data
    padded = ragged().padded_batch(2, padded_shapes=[np.int64(4)], drop_remainder=True)
    assert padded.element_spec.shape == (2, 4) and type(padded.element_spec.shape[1]) is int
    assert listed(padded.take(1)) == [[[0, 0, 0, 0], [0, 1, 0, 0]]]
    with pytest.raises(UsageError) as refused:
        list(ragged().padded_batch(2, padded_shapes=(np.int64(1),)))
    assert "(1,)" in str(refused.value)


def test_numbers_of_elements_may_be_numpys_floats():  # as tf.data; `np.ceil` gives them
    ds = Dataset.range(10)
    assert listed(ds.take(np.ceil(1.5))) == [0, 1] and listed(ds.skip(np.float32(8))) == [8, 9]
    with pytest.raises(UsageError):  # tf.data takes 2
        ds.take(np.float64(2.5))
    with pytest.raises(UsageError):  # as tf.data, a TypeError there
        ds.take(2.0)


def test_parts_of_a_tuple_are_filled_up_apart():  # as tf.data
    assert listed(with_sizes().padded_batch(3)) == [
        ([[0, 0, 0], [0, 1, 0], [0, 1, 2]], [1, 2, 3]),
        ([[0, 1, 2, 3, 0], [0, 1, 2, 3, 4]], [4, 5]),
    ]
    shapes, values = ([6], []), (-1, None)
    assert listed(with_sizes().padded_batch(3, shapes, values)) == [
        ([[0, -1, -1, -1, -1, -1], [0, 1, -1, -1, -1, -1], [0, 1, 2, -1, -1, -1]], [1, 2, 3]),
        ([[0, 1, 2, 3, -1, -1], [0, 1, 2, 3, 4, -1]], [4, 5]),
    ]
    assert listed(with_sizes().padded_batch(3, padding_values=7))[0][0][0] == [0, 7, 7]
    assert listed(with_sizes().padded_batch(3, (None, None)))[0][1] == [1, 2, 3]


def test_dicts_are_filled_up_by_their_keys():
    ds = with_sizes().map(lambda x, n: {"x": x, "n": n, "none": None})
    shapes = {"x": [3], "n": (), "none": None}
    batch = next(iter(ds.padded_batch(2, shapes, {"x": 9, "n": None, "none": None})))
    assert batch["x"].tolist() == [[0, 9, 9], [0, 1, 9]]
    assert (batch["n"].tolist(), batch["none"]) == ([1, 2], None)


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([["a"], ["b", "c"]], [["a", ""], ["b", "c"]]),  # as tf.data
        ([[b"a\0"], [b"b", b"c"]], [[b"a\0", b""], [b"b", b"c"]]),
        ([[True], [True, True]], [[True, False], [True, True]]),  # as tf.data
        ([[], ["b"]], [[""], ["b"]]),
        ([[1], [0.5, 2.5]], [[1.0, 0.0], [0.5, 2.5]]),
        ([[[1]], [[2, 3], [4, 5]]], [[[1, 0], [0, 0]], [[2, 3], [4, 5]]]),
    ],
)
def test_what_fills_up_is_of_the_type_of_the_elements(elements, expected):
    assert listed(Dataset.from_generator(lambda: iter(elements)).padded_batch(2)) == [expected]


def test_text_is_filled_up_with_a_text():  # as tf.data
    ds = Dataset.from_generator(lambda: iter([["a"], ["b", "c"]]))
    assert listed(ds.padded_batch(2, padding_values="x")) == [[["a", "x"], ["b", "c"]]]


def test_batches_without_rows_are_passed_over():
    ds = Dataset.from_tensor_slices([0, 2, 0, 0, 1, 0]).flat_map(
        lambda n: Dataset.from_tensors(np.full(n, n))
    )
    assert listed(ds.unbatch()) == [2, 2, 1]
    assert listed(ds.rebatch(2)) == [[2, 2], [1]]


def test_rows_of_arrays_of_jax_are_in_host_memory():
    rows = list(Dataset.range(2).batch(2).map(jnp.asarray).unbatch())
    assert all(isinstance(row, np.generic) for row in rows)


@pytest.mark.parametrize(
    ("size", "drop", "expected"),
    [  # as tf.data
        (3, False, [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]),
        (3, True, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ([2, 1, 4], False, [[0, 1], [2], [3, 4, 5, 6], [7, 8], [9]]),
        ([4], False, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]),
        (np.array([4, 6]), False, [[0, 1, 2, 3], [4, 5, 6, 7, 8, 9]]),
        (20, False, [[*range(10)]]),
        (20, True, []),
    ],
)
def test_rows_in_batches_of_another_size(size, drop, expected):
    assert listed(Dataset.range(10).batch(4).rebatch(size, drop)) == expected


@pytest.mark.parametrize(
    ("total", "window", "expected"),
    [  # as tf.data; size, shift, stride, drop_remainder
        (7, (3, None, 1, False), [[0, 1, 2], [3, 4, 5], [6]]),
        (7, (3, 1, 1, True), [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6]]),
        (7, (3, 2, 1, False), [[0, 1, 2], [2, 3, 4], [4, 5, 6], [6]]),
        (7, (3, 1, 2, True), [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        (7, (3, 1, 2, False), [[0, 2, 4], [1, 3, 5], [2, 4, 6], [3, 5], [4, 6], [5], [6]]),
        (7, (2, 4, 1, False), [[0, 1], [4, 5]]),
        (7, (2, 5, 1, True), [[0, 1], [5, 6]]),
        (3, (5, 1, 1, False), [[0, 1, 2], [1, 2], [2]]),
        (3, (5, 2, 1, True), []),
        (7, (2, 3, 2, False), [[0, 2], [3, 5], [6]]),
        (0, (2, 1, 1, False), []),
    ],
)
def test_windows(total, window, expected):
    for ds in (Dataset.range(total), Dataset.range(total).map(lambda x: x)):
        assert [listed(w) for w in ds.window(*window)] == expected
        assert len(ds.window(*window)) == len(expected)


def test_windows_of_nests_are_nests_of_windows():
    ds = Dataset.from_tensor_slices({"a": np.arange(4), "b": (np.arange(4) * 2, None)}).window(2)
    first, second = ds
    assert isinstance(first["a"], Dataset)
    assert (listed(second["a"]), listed(second["b"][0])) == ([2, 3], [4, 6])
    assert ds.element_spec["a"] == rx.data.ArraySpec((), np.int64)
