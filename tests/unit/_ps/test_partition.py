"""Partitioners and shard arithmetic; the expected numbers are those of TensorFlow.

Numbers in comments are pairs of the semantics' list A.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._ps.store.partition import num_shards, shard_rows

from helpers import run_python

Fixed = rx.experimental.partitioners.FixedShardsPartitioner
MinSize = rx.experimental.partitioners.MinSizePartitioner
MaxSize = rx.experimental.partitioners.MaxSizePartitioner


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "expected"),
    [
        (Fixed(2), [10, 3], "float32", [2, 1]),  # 1
        (Fixed(4), [3], "float32", [3]),  # 2
        (MinSize(4, max_shards=2), [6, 1], "float32", [2, 1]),  # 4
        (MinSize(4, max_shards=10), [6, 1], "float32", [6, 1]),
        (MinSize(), [1024, 1024], "float32", [1, 1]),  # 5
        (MinSize(max_shards=16), [1024, 1024], "float32", [16, 1]),
        (MinSize(max_shards=100), [1024, 1024], "float32", [16, 1]),
        (MinSize(16, max_shards=10), [6, 1], "string", [6, 1]),  # 7
        (MinSize(32, max_shards=10), [6, 1], "string", [3, 1]),
        (MinSize(256 << 10, max_shards=3), [100000, 16], "float32", [3, 1]),  # 8
        (MaxSize(100), [10, 10], "float32", [5, 1]),  # 10
        (MaxSize(1), [10, 1], "float32", [10, 1]),
        (MaxSize(1 << 20), [1000, 1000], "float32", [4, 1]),
        (MaxSize(10), [6, 1], "float64", [6, 1]),
        (MaxSize(1, max_shards=0), [10, 1], "float32", [10, 1]),  # 11
        (Fixed(0), [10, 1], "float32", [0, 1]),  # 11
        # 24 bytes in shards of 5 at least are ceil(4.8) shards: the rounding goes below the least.
        (MinSize(5, max_shards=10), [6, 1], "float32", [5, 1]),
        (MaxSize(1, max_shards=4), [10, 1], "float32", [4, 1]),
        (MinSize(1), [0, 3], "float32", [1, 1]),
        (MaxSize(1), [0, 3], "float32", [1, 1]),
    ],
)
def test_the_number_of_shards_is_tensorflows(partitioner, shape, dtype, expected):
    assert partitioner(shape, dtype) == expected


def test_another_axis_can_be_cut():
    assert Fixed(4)([10, 3], "float32", axis=1) == [1, 3]
    assert MinSize(4, max_shards=9)([1, 6], "float32", axis=1) == [1, 6]
    assert MaxSize(8)([2, 6], "float32", axis=1) == [1, 6]


# bfloat16 is known to NumPy only where JAX was imported.
@pytest.mark.parametrize("dtype", ["bfloat16", jnp.bfloat16, "float16", np.int16, np.dtype("i2")])
def test_types_are_named_in_many_ways(dtype):
    assert MaxSize(10)([10, 1], dtype) == [2, 1]


@pytest.mark.parametrize("dtype", ["U7", object, np.dtype("S3")])
def test_text_counts_by_the_string(dtype):
    assert MinSize(32, max_shards=10)([6, 1], dtype) == [3, 1]


@pytest.mark.parametrize("partitioner", [Fixed(2), MinSize(), MaxSize(1)])
def test_a_scalar_has_no_axis_to_cut(partitioner):
    said = r"Cannot partition variable along axis 0 when shape is only \(\)"
    with pytest.raises(ValueError, match=said):
        partitioner([], "float32")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: MinSize(0), "min_shard_bytes"),  # 11
        (lambda: MaxSize(0), "max_shard_bytes"),
        (lambda: MinSize(max_shards=0), "max_shards"),
        (lambda: MaxSize(1, max_shards=-1), "max_shards"),
        (lambda: MinSize(bytes_per_string=0), "bytes_per_string"),
        (lambda: MaxSize(1, bytes_per_string=0), "bytes_per_string"),
    ],
)
def test_sizes_must_be_positive(make, name):
    said = f"`{name}`.* at least 1"
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    ("partitioner", "shape", "expected"),
    [
        (Fixed(4), (3,), 3),  # 13
        (MinSize(64 << 20, max_shards=2), (10,), 1),  # 17
        (None, (10, 2), 1),
        (Fixed(4), (), 1),
        (lambda shape, dtype: [5, 1], (3, 2), 3),
        (lambda shape, dtype: (np.int64(2), 1), (3, 2), 2),
        (lambda shape, dtype: [5, 1], (0, 2), 1),
    ],
)
def test_a_variable_has_as_many_shards_as_the_partitioner_says(partitioner, shape, expected):
    assert num_shards(partitioner, shape, "int32") == expected


def test_a_partitioner_sees_the_whole_shape_and_the_type():
    seen = []
    num_shards(lambda *args: seen.append(args) or [1, 1], [4, 2], "float32")
    assert seen == [((4, 2), "float32")]


@pytest.mark.parametrize("answer", [[0, 1], [2, 2], [-1, 1], [], None, 2, "2", [1.5, 1]])
def test_another_answer_is_refused(answer):
    said = r"elements are 1 besides the first element \(non-zero\).*Return \[2, 1\]"
    with pytest.raises(UsageError, match=said):
        num_shards(lambda shape, dtype: answer, (4, 2), "float32")


@pytest.mark.parametrize(
    ("rows", "shards", "expected"),
    [
        (3, 3, (1, 1, 1)),  # 13
        (13, 4, (4, 3, 3, 3)),  # 14
        (13, 5, (3, 3, 3, 2, 2)),
        (10, 4, (3, 3, 2, 2)),
        (0, 1, (0,)),
    ],
)
def test_the_first_shards_have_a_row_more(rows, shards, expected):
    assert shard_rows(rows, shards) == expected
    assert sum(expected) == rows


def test_the_names_are_where_tensorflow_has_them():
    assert rx.experimental.partitioners.Partitioner in Fixed.__mro__


def test_the_arithmetic_needs_neither_jax_nor_keras():
    program = """
        import sys
        from replicax._ps.store import partition
        heavy = {"jax", "keras"} & set(sys.modules)
        print(partition.MaxSizePartitioner(10)((10, 1), "bfloat16"), heavy)
    """
    assert run_python(program) == "[2, 1] set()\n"
