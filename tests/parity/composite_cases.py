"""Calls of `tf.sparse`, `tf.ragged`, of records and of CTC decoders; TensorFlow's or ours."""

from __future__ import annotations

import numpy as np

MATRIX = np.arange(8, dtype=np.float32).reshape(4, 2)
OTHER = np.arange(6, dtype=np.float32).reshape(3, 2)
LOGITS = np.random.default_rng(0).normal(size=(6, 3, 4)).astype(np.float32).round(3)
LOGITS[1, 0] = LOGITS[0, 0]
LENGTHS = np.array([6, 4, 5], np.int32)
ROWS = [[3, 1, 4, 1], [], [5, 9, 2], [6], []]
# Two pictures of 3 · 2 pixels, a red and a blue one.
GIF = bytes.fromhex(
    "47494638376103000200810000ff00000000ff0000000000002c0000000003000200000806000108"
    "1c18100021f90401000001002c0000000003000200810000ff00000000000000000008060001081c"
    "1810003b"
)
WORDS = ["a b c", "", "c d"]


def sparse(tf, kind=np.int32):
    return tf.SparseTensor([[0, 2], [1, 0], [2, 1]], np.array([3, -1, 2], kind), [3, 4])


def other(tf):
    return tf.SparseTensor([[0, 2], [2, 3]], [-3, 5], [3, 4])


def floats(tf):
    return sparse(tf, np.float32)


def mixed(tf):
    return tf.SparseTensor([[2, 1], [0, 2]], [1, 2], [3, 4])


def ids(tf, ragged=False):
    found = tf.ragged.constant([[2, 0], [1]])
    return found if ragged else found.to_sparse()


def rows(tf):
    return tf.ragged.constant(ROWS)


def pairs(tf):
    return tf.ragged.constant([[[1, 2], [3, 4]], [], [[5, 6]]], ragged_rank=1)


def feature(tf, *values):
    train, first = tf.train, (*values, 0)[0]
    if isinstance(first, bytes):
        return train.Feature(bytes_list=train.BytesList(value=values))
    if isinstance(first, float):
        return train.Feature(float_list=train.FloatList(value=values))
    return train.Feature(int64_list=train.Int64List(value=values))


def features(tf, named):
    found = {name: feature(tf, *values) for name, values in named.items()}
    return tf.train.Features(feature=found)


def example(tf, **named):
    return tf.train.Example(features=features(tf, named)).SerializeToString()


def examples(tf):
    return [
        example(tf, a=[1, 2], b=[0.5], c=[b"x", b"yy"], d=[1, 2, 3, 4]),
        example(tf, a=[7], b=[1.5]),
        example(tf, b=[2.5], c=[b"z"], d=[9, 8]),
    ]


def example_features(tf):
    return {
        "a": tf.io.VarLenFeature(tf.int64),
        "b": tf.io.FixedLenFeature([], tf.float32),
        "c": tf.io.VarLenFeature(tf.string),
        "d": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True),
        "none": tf.io.VarLenFeature(tf.float32),
    }


def ragged_features(tf):
    return {
        "numbers": tf.io.RaggedFeature(tf.int64, value_key="a"),
        "c": tf.io.RaggedFeature(tf.string),
    }


def sequence(tf, context, **lists):
    found = {
        name: tf.train.FeatureList(feature=[feature(tf, *step) for step in steps])
        for name, steps in lists.items()
    }
    return tf.train.SequenceExample(
        context=features(tf, context), feature_lists=tf.train.FeatureLists(feature_list=found)
    ).SerializeToString()


def sequences(tf):
    return [
        sequence(
            tf,
            {"n": [3], "w": [b"q", b"r"]},
            x=[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
            y=[[1], [], [2, 3]],
        ),
        sequence(tf, {"n": [1]}, x=[[7.0, 8.0]], y=[[4, 5, 6]]),
    ]


def context_features(tf):
    return {"n": tf.io.FixedLenFeature([], tf.int64), "w": tf.io.VarLenFeature(tf.string)}


def sequence_features(tf):
    return {
        "x": tf.io.FixedLenSequenceFeature([2], tf.float32),
        "y": tf.io.VarLenFeature(tf.int64),
        "z": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    }


def step_features(tf, kind):
    found = {
        "ragged": tf.io.RaggedFeature(tf.int64),
        "scalars": tf.io.FixedLenSequenceFeature([], tf.int64),
    }
    return {"y": found[kind]}


SPARSE = {
    "add": lambda tf: tf.sparse.add(sparse(tf), other(tf)),
    "add_above": lambda tf: tf.sparse.add(sparse(tf), other(tf), threshold=4),
    "add_array": lambda tf: tf.sparse.add(sparse(tf), np.ones((3, 4), np.int32)),
    "add_unlike": lambda tf: tf.sparse.add(sparse(tf), tf.SparseTensor([[0, 1]], [7], [1, 2])),
    "dense": lambda tf: tf.sparse.to_dense(sparse(tf)),
    "dense_default": lambda tf: tf.sparse.to_dense(sparse(tf), default_value=-9),
    "dense_mixed": lambda tf: tf.sparse.to_dense(mixed(tf)),
    "dense_mixed_unchecked": lambda tf: tf.sparse.to_dense(mixed(tf), validate_indices=False),
    "dense_twice": lambda tf: tf.sparse.to_dense(tf.SparseTensor([[0, 1], [0, 1]], [1, 2], [3, 4])),
    "dense_none": lambda tf: tf.sparse.to_dense(
        tf.SparseTensor(np.zeros((0, 2), np.int64), np.zeros(0, np.float32), [1, 2])
    ),
    "dense_text": lambda tf: tf.sparse.to_dense(tf.sparse.from_dense(["a", "", "b"])),
    "dense_text_default": lambda tf: tf.sparse.to_dense(tf.sparse.from_dense(["a", ""]), "x"),
    "dense_of_array": lambda tf: tf.sparse.to_dense(np.ones(2)),
    "sum": lambda tf: tf.sparse.reduce_sum(sparse(tf)),
    "sum_last": lambda tf: tf.sparse.reduce_sum(sparse(tf), -1),
    "sum_first": lambda tf: tf.sparse.reduce_sum(sparse(tf), 0, keepdims=True),
    "sum_both": lambda tf: tf.sparse.reduce_sum(sparse(tf), [0, 1]),
    "max": lambda tf: tf.sparse.reduce_max(sparse(tf)),
    "max_last": lambda tf: tf.sparse.reduce_max(sparse(tf), 1),
    "max_first": lambda tf: tf.sparse.reduce_max(floats(tf), 0),
    "max_kept": lambda tf: tf.sparse.reduce_max(sparse(tf), keepdims=True),
    "matmul": lambda tf: tf.sparse.sparse_dense_matmul(floats(tf), MATRIX),
    "matmul_adjoint": lambda tf: tf.sparse.sparse_dense_matmul(floats(tf), OTHER, adjoint_a=True),
    "matmul_adjoint_b": lambda tf: tf.sparse.sparse_dense_matmul(
        floats(tf), MATRIX.T, adjoint_b=True
    ),
    "matmul_from_left": lambda tf: tf.sparse.sparse_dense_matmul(OTHER.T, floats(tf)),
    "matmul_from_left_a": lambda tf: tf.sparse.sparse_dense_matmul(
        OTHER, floats(tf), adjoint_a=True
    ),
    "matmul_from_left_b": lambda tf: tf.sparse.sparse_dense_matmul(
        MATRIX.T, floats(tf), adjoint_b=True
    ),
    "matmul_unlike": lambda tf: tf.sparse.sparse_dense_matmul(floats(tf), OTHER),
    "matmul_vector": lambda tf: tf.sparse.sparse_dense_matmul(floats(tf), MATRIX[:, 0]),
    "transpose": lambda tf: tf.sparse.transpose(sparse(tf)),
    "transpose_by": lambda tf: tf.sparse.transpose(tf.sparse.expand_dims(sparse(tf), 0), [2, 0, 1]),
    "reshape": lambda tf: tf.sparse.reshape(sparse(tf), [2, -1]),
    "reshape_unlike": lambda tf: tf.sparse.reshape(sparse(tf), [5, 2]),
    "slice": lambda tf: tf.sparse.slice(sparse(tf), [0, 1], [3, 2]),
    "slice_at_end": lambda tf: tf.sparse.slice(sparse(tf), [1, 2], [8, 8]),
    "slice_outside": lambda tf: tf.sparse.slice(sparse(tf), [0, 10], [3, 2]),
    **{
        f"expand_dims_{axis}": lambda tf, axis=axis: tf.sparse.expand_dims(sparse(tf), axis)
        for axis in (None, 0, 1, -3)
    },
    "concat_last": lambda tf: tf.sparse.concat(-1, [sparse(tf), other(tf)]),
    "concat_first": lambda tf: tf.sparse.concat(0, [sparse(tf), other(tf)]),
    "concat_unlike": lambda tf: tf.sparse.concat(
        0, [sparse(tf), tf.SparseTensor([[0, 1]], [7], [1, 2])]
    ),
    "concat_expanded": lambda tf: tf.sparse.concat(
        0, [sparse(tf), tf.SparseTensor([[0, 1]], [7], [1, 2])], expand_nonconcat_dims=True
    ),
    "retain": lambda tf: tf.sparse.retain(sparse(tf), [True, False, True]),
    "fill_empty_rows": lambda tf: tf.sparse.fill_empty_rows(other(tf), 9),
    "to_indicator": lambda tf: tf.sparse.to_indicator(ids(tf), 4),
    "reorder": lambda tf: tf.sparse.reorder(mixed(tf)),
    "reset_shape": lambda tf: tf.sparse.reset_shape(sparse(tf), [3, 6]),
    "reset_shape_tight": lambda tf: tf.sparse.reset_shape(tf.SparseTensor([[0, 1]], [7], [4, 4])),
    "reset_shape_empty": lambda tf: tf.sparse.reset_shape(tf.sparse.from_dense([[0, 0]])),
    "reset_shape_smaller": lambda tf: tf.sparse.reset_shape(sparse(tf), [3, 3]),
    "reset_shape_unlike": lambda tf: tf.sparse.reset_shape(sparse(tf), [3, 4, 1]),
    "map_values": lambda tf: tf.sparse.map_values(tf.add, sparse(tf), 5),
    "map_values_of_two": lambda tf: tf.sparse.map_values(tf.multiply, sparse(tf), sparse(tf)),
    "map_values_unlike": lambda tf: tf.sparse.map_values(tf.multiply, sparse(tf), other(tf)),
    "from_dense": lambda tf: tf.sparse.from_dense([[0, 1], [2, 0]]),
    "times": lambda tf: sparse(tf) * 2,
    "times_array": lambda tf: floats(tf) * MATRIX.reshape(-1)[:4],
    "divided": lambda tf: floats(tf) / 2.0,
    "abs": lambda tf: tf.abs(floats(tf)),
    "cast": lambda tf: tf.cast(sparse(tf), tf.float32),
    "square": lambda tf: tf.square(floats(tf)),
    "exp": lambda tf: tf.exp(floats(tf)),
    "shape": lambda tf: tf.shape(sparse(tf)),
    "rank": lambda tf: tf.rank(sparse(tf)),
    "size": lambda tf: tf.size(sparse(tf)),
    "with_values": lambda tf: sparse(tf).with_values([4, 5, 6]),
    "lookup": lambda tf: tf.nn.embedding_lookup_sparse(MATRIX, ids(tf), None),
    "lookup_weighted": lambda tf: tf.nn.embedding_lookup_sparse(
        MATRIX, ids(tf), ids(tf).with_values(np.float32([1, 3, 2])), combiner="sum"
    ),
    "lookup_ragged": lambda tf: tf.nn.embedding_lookup_sparse(MATRIX, ids(tf, True), None),
    "unlike_indices": lambda tf: tf.SparseTensor([[0]], [1], [3, 4]),
    "unlike_values": lambda tf: tf.SparseTensor([[0, 1]], [1, 2], [3, 4]),
}
_REDUCTIONS = ("sum", "prod", "mean", "max", "min", "variance", "std")
RAGGED = {
    **{
        f"reduce_{name}_{axis}": lambda tf, name=name, axis=axis: getattr(
            tf.math, f"reduce_{name}"
        )(rows(tf), axis=axis)
        for name in _REDUCTIONS
        for axis in (None, 0, 1, -1)
    },
    **{
        f"reduce_{name}_of_pairs_{axis}": lambda tf, name=name, axis=axis: getattr(
            tf.math, f"reduce_{name}"
        )(tf.cast(pairs(tf), tf.float32), axis=axis)
        for name in ("sum", "mean", "max")
        for axis in (0, 1, 2, -1, [1, 2], [0, 1])
    },
    **{
        f"reduce_{name}_{axis}": lambda tf, name=name, axis=axis: getattr(tf, f"reduce_{name}")(
            rows(tf) > 3, axis=axis
        )
        for name in ("any", "all")
        for axis in (None, 0, 1)
    },
    "kept": lambda tf: tf.reduce_sum(rows(tf), axis=1, keepdims=True),
    "max_of_floats": lambda tf: tf.reduce_max(tf.cast(rows(tf), tf.float32), axis=1),
    "first_of_row": lambda tf: rows(tf)[0, 1],
    "row": lambda tf: rows(tf)[-3],
    "no_row": lambda tf: rows(tf)[9],
    "column": lambda tf: rows(tf)[:, 0],
    "some_rows": lambda tf: rows(tf)[1:3],
    "every_second_row": lambda tf: rows(tf)[::2],
    "beginnings": lambda tf: rows(tf)[:, :2],
    "ends": lambda tf: rows(tf)[:, -2:],
    "every_second": lambda tf: rows(tf)[:, ::2],
    "ellipsis": lambda tf: rows(tf)[..., :1],
    "inner": lambda tf: pairs(tf)[:, :1, 1],
    "inner_ellipsis": lambda tf: pairs(tf)[..., 0],
    "shape": lambda tf: rows(tf).shape.as_list(),
    "shape_of_pairs": lambda tf: pairs(tf).shape.as_list(),
    "bounding_shape": lambda tf: rows(tf).bounding_shape(),
    "bounding_shape_1": lambda tf: rows(tf).bounding_shape(axis=1),
    "row_lengths": lambda tf: rows(tf).row_lengths(),
    "row_splits": lambda tf: rows(tf).row_splits,
    "row_starts": lambda tf: rows(tf).row_starts(),
    "value_rowids": lambda tf: rows(tf).value_rowids(),
    "nrows": lambda tf: rows(tf).nrows(),
    "values": lambda tf: rows(tf).flat_values,
    "to_tensor": lambda tf: rows(tf).to_tensor(),
    "to_tensor_default": lambda tf: rows(tf).to_tensor(default_value=-1, shape=[None, 3]),
    "to_tensor_cut": lambda tf: rows(tf).to_tensor(shape=[3, 5]),
    "to_tensor_pairs": lambda tf: pairs(tf).to_tensor(),
    "to_sparse": lambda tf: rows(tf).to_sparse(),
    "from_sparse": lambda tf: tf.RaggedTensor.from_sparse(rows(tf).to_sparse()),
    "from_sparse_gaps": lambda tf: tf.RaggedTensor.from_sparse(sparse(tf)),
    "from_tensor_padding": lambda tf: tf.RaggedTensor.from_tensor(
        [[0, 2, 0], [4, 0, 0], [0, 0, 0]], padding=0
    ),
    "from_tensor_lengths": lambda tf: tf.RaggedTensor.from_tensor(
        [[1, 2, 0], [4, 0, 0]], lengths=[1, 2]
    ),
    "from_value_rowids": lambda tf: tf.RaggedTensor.from_value_rowids([3, 1, 4], [0, 0, 2], 4),
    "from_value_rowids_mixed": lambda tf: tf.RaggedTensor.from_value_rowids([1, 2], [1, 0]),
    "from_row_lengths": lambda tf: tf.RaggedTensor.from_row_lengths([3, 1, 4], [1, 0, 2]),
    "from_row_lengths_unlike": lambda tf: tf.RaggedTensor.from_row_lengths([1, 2, 3], [1, 1]),
    "from_row_splits_unlike": lambda tf: tf.RaggedTensor.from_row_splits([1, 2, 3], [0, 2]),
    "constant_of_none": lambda tf: tf.ragged.constant([[], []]),
    "constant_of_scalars": lambda tf: tf.ragged.constant([1, 2]),
    "constant_of_floats": lambda tf: tf.ragged.constant([[1.5], []]),
    "constant_of_text": lambda tf: tf.ragged.constant([["a"], []]),
    "constant_typed": lambda tf: tf.ragged.constant([[1], []], dtype=tf.float32),
    "constant_inner_shape": lambda tf: tf.ragged.constant([[[1, 2]], []], inner_shape=(2,)),
    "constant_mixed": lambda tf: tf.ragged.constant([["one", "two"], [3, 4]]),
    "constant_uneven": lambda tf: tf.ragged.constant(["A", ["B", "C"]]),
    "minus": lambda tf: 1 - rows(tf),
    "floordiv": lambda tf: rows(tf) // 2,
    "mod": lambda tf: rows(tf) % 3,
    "power": lambda tf: rows(tf) ** 2,
    "divided": lambda tf: rows(tf) / 2,
    "negative": lambda tf: -rows(tf),
    "equal": lambda tf: rows(tf) == 1,
    "less": lambda tf: rows(tf) < 4,
    "and": lambda tf: (rows(tf) > 1) & ~(rows(tf) > 4),
    "plus_rows": lambda tf: rows(tf) + np.array([[1], [2], [3], [4], [5]], np.int32),
    "plus_row": lambda tf: rows(tf) + np.array([[1]], np.int32),
    "plus_vector": lambda tf: rows(tf) + np.array([1], np.int32),
    "plus_unlike": lambda tf: rows(tf) + np.array([1, 2, 3, 4], np.int32),
    "plus_other_rows": lambda tf: rows(tf) + tf.ragged.constant([[1, 2], [3], [], [], [4]]),
    "pairs_plus": lambda tf: pairs(tf) + np.array([10, 20], np.int32),
    "where": lambda tf: tf.where(rows(tf) > 2, rows(tf), 0),
    "cast": lambda tf: tf.cast(rows(tf), np.float32),
    "clip": lambda tf: tf.clip_by_value(rows(tf), 2, 5),
    "ones_like": lambda tf: tf.ones_like(rows(tf)),
    "relu": lambda tf: tf.nn.relu(rows(tf) - 3),
    "concat_rows": lambda tf: tf.concat([rows(tf), [[5, 3]]], 0),
    "concat_in_rows": lambda tf: tf.concat([rows(tf), rows(tf) + 10], 1),
    "concat_marker": lambda tf: tf.concat([np.zeros((5, 1), np.int32), rows(tf)], axis=1),
    "concat_inner": lambda tf: tf.concat([pairs(tf), pairs(tf)], 2),
    "concat_unlike": lambda tf: tf.concat([rows(tf), [[5, 3]]], 1),
    "reverse": lambda tf: tf.reverse(rows(tf), [1]),
    "reverse_rows": lambda tf: tf.reverse(rows(tf), [0]),
    "expand_dims": lambda tf: tf.expand_dims(rows(tf), -1),
    "squeeze": lambda tf: tf.squeeze(tf.expand_dims(rows(tf), -1), -1),
    "gather": lambda tf: tf.gather(rows(tf), [2, 0]),
    "gather_by_rows": lambda tf: tf.gather(np.arange(10, 20), rows(tf)),
    "gather_outside": lambda tf: tf.gather(rows(tf), [5]),
    "one_hot": lambda tf: tf.one_hot(rows(tf), 3),
    "size": lambda tf: tf.size(rows(tf)),
    "rank": lambda tf: tf.rank(rows(tf)),
    "stack": lambda tf: tf.ragged.stack([[1, 2], [3]]),
    "boolean_mask": lambda tf: tf.ragged.boolean_mask([[1, 2], [3, 4]], [[True, False]] * 2),
    "boolean_mask_of_rows": lambda tf: tf.ragged.boolean_mask(rows(tf), rows(tf) > 2),
    "range": lambda tf: tf.ragged.range([3, 0, 2]),
    "range_limits": lambda tf: tf.ragged.range([0, 5], [3, 10], 2),
    "map_flat_values": lambda tf: tf.ragged.map_flat_values(lambda x: x * 2 + 1, rows(tf)),
    "segment_ids": lambda tf: tf.ragged.row_splits_to_segment_ids([0, 2, 2, 5]),
    "segment_splits": lambda tf: tf.ragged.segment_ids_to_row_splits([0, 0, 2, 2, 2]),
    "lookup": lambda tf: tf.nn.embedding_lookup(MATRIX, ids(tf, True)),
    "split": lambda tf: tf.strings.split(WORDS),
    "split_to_tensor": lambda tf: tf.strings.split(WORDS).to_tensor(),
    "split_one": lambda tf: tf.strings.split("a b"),
    "split_lengths": lambda tf: tf.strings.length(tf.strings.split(["abc b", "c"])),
    "split_numbers": lambda tf: tf.strings.to_number(tf.strings.split(["1,2", "3"], ",")),
    "split_joined": lambda tf: tf.strings.reduce_join(
        tf.strings.split(WORDS), axis=-1, separator="-"
    ),
    "split_ngrams": lambda tf: tf.strings.ngrams(tf.strings.split(WORDS), 2),
    "split_plus": lambda tf: tf.strings.join([tf.strings.split(WORDS), "x"]),
    "bytes": lambda tf: tf.strings.bytes_split(["ab", "c"]),
    "characters": lambda tf: tf.strings.unicode_split(["äb", "c"], "UTF-8"),
    "code_points": lambda tf: tf.strings.unicode_decode(["äb", "c"], "UTF-8"),
}
RECORDS = {
    "examples": lambda tf: tf.io.parse_example(examples(tf), example_features(tf)),
    "example": lambda tf: tf.io.parse_single_example(examples(tf)[0], example_features(tf)),
    "example_without": lambda tf: tf.io.parse_single_example(examples(tf)[1], example_features(tf)),
    "example_of_batch": lambda tf: tf.io.parse_example(examples(tf)[0], example_features(tf)),
    "examples_ragged": lambda tf: tf.io.parse_example(examples(tf), ragged_features(tf)),
    "example_ragged": lambda tf: tf.io.parse_single_example(examples(tf)[1], ragged_features(tf)),
    "examples_filled": lambda tf: tf.io.parse_example(
        examples(tf),
        {
            "d": tf.io.FixedLenSequenceFeature([2], tf.int64, True, default_value=-1),
            "c": tf.io.FixedLenSequenceFeature([], tf.string, True, default_value="none"),
        },
    ),
    "examples_may_not_miss": lambda tf: tf.io.parse_example(
        examples(tf), {"d": tf.io.FixedLenSequenceFeature([2], tf.int64)}
    ),
    "examples_not_whole": lambda tf: tf.io.parse_example(
        examples(tf), {"a": tf.io.FixedLenSequenceFeature([2], tf.int64, allow_missing=True)}
    ),
    "sequence": lambda tf: tf.io.parse_single_sequence_example(
        sequences(tf)[0], context_features(tf), sequence_features(tf)
    ),
    "sequence_ragged": lambda tf: tf.io.parse_single_sequence_example(
        sequences(tf)[0], sequence_features=step_features(tf, "ragged")
    ),
    "sequence_not_fixed": lambda tf: tf.io.parse_single_sequence_example(
        sequences(tf)[0], sequence_features=step_features(tf, "scalars")
    ),
    "sequence_without": lambda tf: tf.io.parse_single_sequence_example(
        sequences(tf)[0], sequence_features={"q": tf.io.FixedLenSequenceFeature([], tf.int64)}
    ),
    "sequences": lambda tf: tf.io.parse_sequence_example(
        sequences(tf), context_features(tf), sequence_features(tf)
    ),
    "sequences_context": lambda tf: tf.io.parse_sequence_example(
        sequences(tf), {"r": tf.io.RaggedFeature(tf.string, value_key="w")}
    ),
    "gif": lambda tf: tf.io.decode_gif(GIF),
    "crop": lambda tf: tf.shape(
        tf.image.decode_and_crop_jpeg(
            tf.io.encode_jpeg(np.zeros((5, 7, 3), np.uint8)), [1, 2, 3, 4]
        )
    ),
    "crop_outside": lambda tf: tf.image.decode_and_crop_jpeg(
        tf.io.encode_jpeg(np.zeros((5, 7, 3), np.uint8)), [1, 2, 5, 4]
    ),
}
CTC = {
    "greedy": lambda tf: tf.nn.ctc_greedy_decoder(LOGITS, LENGTHS),
    "greedy_repeated": lambda tf: tf.nn.ctc_greedy_decoder(LOGITS, LENGTHS, merge_repeated=False),
    "greedy_blank": lambda tf: tf.nn.ctc_greedy_decoder(LOGITS, LENGTHS, blank_index=-2),
    "beams": lambda tf: tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS),
    "beams_of_three": lambda tf: tf.nn.ctc_beam_search_decoder(LOGITS, LENGTHS, 60, 3),
}


def slices(tf):
    """A data set of the rows of an array, a ragged and a sparse tensor."""
    ragged = rows(tf)
    parts = {"dense": ragged.to_tensor(), "ragged": ragged, "sparse": ragged.to_sparse()}
    return tf.data.Dataset.from_tensor_slices(parts)


def elements(dataset):
    return [dataset.element_spec, list(dataset)]


def pieces(tf, dataset, fn=None):
    """The pieces of two replicas, and what a function gives of them."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = strategy.experimental_local_results
    found = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        found.append([results(batch[key]) for key in sorted(batch)])
        if fn is not None:
            values = strategy.run(fn, args=(batch,))
            found.append([results(value) for value in values])
            found.append(strategy.reduce("SUM", values[0], axis=None))
    return found


def sums(tf):
    def of(batch):
        doubled = tf.reduce_sum(batch["ragged"] * 2), tf.reduce_sum(batch["ragged"], axis=1)
        return (*doubled, tf.sparse.reduce_sum(batch["sparse"], axis=1), batch["dense"])

    return of


DATA = {
    "rows": lambda tf: elements(slices(tf)),
    "batches": lambda tf: elements(slices(tf).batch(2)),
    "whole_batches": lambda tf: elements(slices(tf).batch(2, drop_remainder=True)),
    "rows_in_order": lambda tf: elements(slices(tf).skip(1).take(3).repeat(2).batch(4)),
    "some_rows": lambda tf: elements(slices(tf).filter(lambda x: x["dense"][0] > 0).batch(2)),
    "shards": lambda tf: elements(slices(tf).shard(2, 1).batch(2)),
    "unbatched": lambda tf: elements(slices(tf).batch(2).unbatch().batch(3)),
    "rebatched": lambda tf: elements(slices(tf).batch(2).rebatch(3)),
    "mapped": lambda tf: [
        one.to_list() for one in slices(tf).batch(2).map(lambda x: x["ragged"] * 2)
    ],
    "texts": lambda tf: elements(
        tf.data.Dataset.from_tensor_slices(tf.strings.split(WORDS)).batch(2)
    ),
    "words": lambda tf: elements(
        tf.data.Dataset.from_tensor_slices(WORDS).batch(2).map(tf.strings.split).unbatch().batch(3)
    ),
    "inner_axes": lambda tf: elements(tf.data.Dataset.from_tensor_slices(pairs(tf)).batch(2)),
    "whole": lambda tf: elements(tf.data.Dataset.from_tensors(rows(tf))),
    "zipped": lambda tf: elements(tf.data.Dataset.zip((slices(tf), slices(tf))).batch(2)),
    "concatenated": lambda tf: elements(slices(tf).concatenate(slices(tf)).batch(3)),
    "arrays_of_rows": lambda tf: list(
        tf.data.Dataset.from_tensor_slices(rows(tf)).map(lambda x: x + 1).batch(2)
    ),
    "pieces": lambda tf: pieces(tf, slices(tf).batch(4).take(1)),
    "pieces_of_replicas": lambda tf: pieces(tf, slices(tf).batch(4).take(1), sums(tf)),
    "unequal_pieces": lambda tf: pieces(tf, slices(tf).skip(2).batch(4), sums(tf)),
}
CASES = {
    f"{group}.{name}": case
    for group, cases in (
        ("sparse", SPARSE),
        ("ragged", RAGGED),
        ("records", RECORDS),
        ("ctc", CTC),
        ("data", DATA),
    )
    for name, case in cases.items()
}


def described(tf, found):
    """A result as JSON: its kind, and its numbers or texts."""
    if isinstance(found, tf.SparseTensor):
        parts = (found.indices, found.values, found.dense_shape)
        return {"sparse": [described(tf, part) for part in parts]}
    if isinstance(found, tf.RaggedTensor):
        rows = {"ragged": [described(tf, row) for row in found]}
        return rows | {"shape": list(found.shape)}
    if hasattr(found, "is_compatible_with"):  # a spec
        kind, shape = type(found).__name__, found.shape
        return [kind.replace("Array", "Tensor"), list(shape), found.dtype in (bytes, tf.string)]
    if isinstance(found, dict):
        return {key: described(tf, found[key]) for key in sorted(found)}
    if isinstance(found, list | tuple):
        return [described(tf, part) for part in found]
    array = np.asarray(found.numpy() if hasattr(found, "numpy") else found)
    if array.dtype.kind in "OSU":
        texts = [one.decode() if isinstance(one, bytes) else one for one in array.ravel().tolist()]
        array = np.array(texts, object).reshape(array.shape)
    return {"kind": array.dtype.kind, "array": array.tolist()}
