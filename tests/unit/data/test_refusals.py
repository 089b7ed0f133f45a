"""What data sets refuse by a UsageError: a call, what tells its error from others, and values."""

import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax.data import ArraySpec, Dataset, FixedLenFeature, Options, VarLenFeature
from replicax.data import parse_single_example as parse
from replicax.data._formats.csv import CsvFormat
from replicax.data._formats.format import TextFormat
from replicax.data._formats.parquet import ParquetFormat
from replicax.data._spec import joined, num_rows

NAN, WHOLE = float("nan"), "must be an integer of at least"


def numbers():
    return Dataset.range(3)


def tens():
    return [Dataset.range(10 * i, 10 * i + 3) for i in range(3)]


def mapped(value):
    return list(Dataset.range(1).map(lambda _: value))


def ragged(*rows, **options):
    return list(Dataset.from_generator(lambda: iter(rows)).padded_batch(2, **options))


def set_option(part, name, value):
    setattr(part, name, value)


# fmt: off
REFUSED = [
    # arrays and other sources
    (Dataset.from_tensor_slices, "one length",
     [(np.zeros(3), np.zeros(4)), np.float32(3), 3, (), {}, (None,), (np.zeros(3), 1.0)]),
    (Dataset.from_tensor_slices, "`tensors`",
     ["text", b"text", {"x": "text"}, ArraySpec((), np.int32)]),
    (Dataset.from_generator, "`generator`", [[1, 2], iter([1]), None]),
    (lambda v: list(Dataset.from_generator(lambda: v)), "`generator`.*int.*`yield`", [3]),
    (Dataset.from_source, "`source`.*from_generator", [iter([1]), 3, {1, 2}]),
    (rx.data.TextLineDataset, "a path, a list of paths", [[], None, 5, ["a", 5]]),
    (lambda v: rx.data.TextLineDataset("a.txt", num_parallel_reads=v),
     "`num_parallel_reads` must be an integer", [0, 1.5, "2"]),
    (lambda v: rx.data.timeseries_dataset_from_array(np.arange(3), None, v),
     "sequence_length=4", [4]),
    # batches
    *((lambda v, m=method: getattr(numbers(), m)(v), f"`batch_size` {WHOLE} 1",
       [0, -1]) for method in ("batch", "padded_batch", "rebatch")),
    *((lambda v, m=method: getattr(numbers(), m)(v), "`batch_size` must be .*an integer",
       [2.5, "2", None]) for method in ("batch", "padded_batch", "rebatch")),
    *((lambda v, m=method: list(m(Dataset.from_tensors(v))), "call `batch`",
       [np.float32(1), (np.zeros(2), np.zeros(3)), "text", (1, [2])])
      for method in (lambda ds: ds.unbatch(), lambda ds: ds.rebatch(2))),
    (lambda v: numbers().batch(2).rebatch(v), f"{WHOLE} 1", [[], [2, 0], [1.5]]),
    (lambda v: numbers().cache(v), "path", [3, True]),
    *((lambda v, a=name: numbers().window(**({"size": 2} | {a: v})),
       f"`{name}` {WHOLE} 1", [0]) for name in ("size", "shift", "stride")),
    (num_rows, "shapes",
     [np.float32(1), (np.zeros(2), np.zeros(3)), (), None, "text", (np.zeros(2), 1)]),
    (lambda v: joined([np.zeros((1, 2)), v]), "`padded_batch`",
     [np.zeros((1, 3)), np.zeros(1), (np.zeros((1, 2)),), {"x": np.zeros((1, 2))}]),
    (lambda v: ragged(np.arange(2), padded_shapes=v), r"\(2,\).*\(1,\).*padded_shapes", [[1]]),
    (lambda v: ragged(np.arange(2), padded_shapes=v), "`padded_shapes`.* 1 axes",
     [[2, 2], [], ([6],), {"x": [6]}, 6]),
    (lambda v: ragged(np.zeros(1), v), "1 or 2 axes", [np.zeros((1, 1))]),
    (lambda v: ragged((1, 2), v), "padded_batch", [(1, 2, 3)]),
    # functions of elements
    (lambda v: mapped((1, v)), "padded_batch",
     [[[1], [1, 2]], [["a"], ["b", "c"]], [np.zeros(1), np.zeros(2)]]),
    (lambda v: mapped((1, v)), "list of int, str", [[1, "a"]]),
    (lambda v: mapped((1, v)), "list of NoneType, int", [[None, 1]]),
    (lambda v: mapped((1, v)), "list of dict", [[{}]]),
    (lambda v: mapped((1, v)), "list of bytes, str", [[b"", ""]]),
    *((lambda v, m=method: getattr(numbers(), m)(v), f"(`{method}` takes|must be) a function",
       [3]) for method in ("map", "filter", "take_while", "flat_map", "interleave")),
    *((lambda v, m=method: list(getattr(numbers(), m)(lambda x: np.array(v))), "shape.*all",
       [[True, False], []]) for method in ("filter", "take_while")),
    (lambda v: list(numbers().flat_map(lambda x: v)), "`flat_map` or `interleave`.*data set",
     [[1, 2], None, np.zeros(2)]),
    (lambda v: numbers().scan(0, v), "`scan` takes a function", [None]),
    (lambda v: numbers().map(abs, v), "`num_parallel_calls`", [0, -2, 1.5]),
    (lambda v: Dataset.range(v).map(abs).element_spec, "data set is empty", [0]),
    (lambda v: list(numbers().scan(0, lambda s, x: v)), "`scan`.*`state, output`",
     [1, (1, 2, 3), [1, 2, 3], None]),
    (lambda v: numbers().in_processes(*v), WHOLE, [(-1,), (2, 0), ("two",)]),
    # several data sets
    (Dataset.zip, "`zip` takes data sets",
     [[Dataset.range(2)], (Dataset.range(2), None), 3, (3,)]),
    (lambda v: Dataset.zip(*v), rf"`len\(datasets\)` {WHOLE} 1", [(), ((),), ({},)]),
    *((lambda v, a=name: numbers().interleave(Dataset.range, **{a: v}),
       f"`{name}` {WHOLE} 1", [0]) for name in ("cycle_length", "block_length")),
    (lambda v: Dataset.sample_from_datasets(tens(), v), "`weights`",
     [[1], [1, 2, -1], [0, 0, 0], [NAN] * 3, []]),
    (Dataset.sample_from_datasets, "takes data sets", [[[1], [2]]]),
    (Dataset.sample_from_datasets, r"`len\(datasets\)`", [[]]),
    (lambda v: Dataset.choose_from_datasets([Dataset.range(2)], v), "takes data sets", [[0, 1]]),
    (lambda v: Dataset.choose_from_datasets(v, Dataset.range(2)), r"`len\(datasets\)`", [[]]),
    (lambda v: list(Dataset.choose_from_datasets([numbers()] * 2, Dataset.from_tensors(v))),
     "`choice_dataset`.*from 0 to 1", [2, -1, 0.5, True, "a", [0]]),
    (lambda v: numbers().concatenate(v), "takes data sets", [3, [1], None]),
    # order, shards, positions, options
    (lambda v: numbers().shard(3, v), "`index`.*0 to 2", [3, 4]),
    (lambda v: numbers().shard(v, 0), "`num_shards`", [0, -1, 2.0]),
    (lambda v: numbers().shard(2, v), "`index`", [-1, 0.5]),
    *((lambda v, m=method: getattr(numbers(), m)(v), f"`count` {WHOLE} -1",
       [-2, 1.5, "3", None]) for method in ("take", "skip")),
    (lambda v: numbers().repeat(v), f"`count` {WHOLE} -1", [-2, 2.5, "2"]),
    (lambda v: numbers().shuffle(v), f"`buffer_size` {WHOLE} 1", [0, -1]),
    (lambda v: numbers().shuffle(v), "`buffer_size` must be an integer", [2.5]),
    (lambda v: numbers().shuffle(3, seed=v), "`seed`", [-1, "a", 1.5]),
    (lambda v: numbers().prefetch(v), f"`buffer_size` {WHOLE}", [-2, 1.5, "2"]),
    (lambda v: iter(numbers()).set_state(v), "`state`.*`get_state`",
     [None, 3, {"epoch": 1}, {"epoch": 0, "position": 1, "more": 2}]),
    (lambda v: numbers().with_options(v), "`options`",
     [None, {"deterministic": False}, rx.data.AutoShardPolicy.OFF]),
    (lambda v: set_option(Options().experimental_distribute, "auto_shard_policy", v),
     "`auto_shard_policy`", ["FILES", 9, None]),
    # formats
    (lambda v: CsvFormat([int], field_delim=v), "one character", ["", ",,", '"', "\n"]),
    (lambda v: CsvFormat([int], select_cols=v), "`record_defaults`", [[0, 1]]),
    (lambda v: CsvFormat([np.int32, np.float32], select_cols=v), "`select_cols`",
     [[1, 0], [0, 0], [-1, 0]]),
    (ParquetFormat, "a list of names", [[], "x"]),
    (TextFormat, "None, 'GZIP' or 'ZLIB'", ["gzip", "BZ2", 1]),
    (lambda v: parse(v, {"x": VarLenFeature(int)}), "bytes",
     ["text", [b""], np.array([b""], object), None]),
    *((make, "int64, float32 or bytes", [str, np.int32, np.float64, object, bool])
      for make in (VarLenFeature, lambda dtype: FixedLenFeature((), dtype))),
    (lambda v: FixedLenFeature(v, int), "`shape`", [(None, 2), (-1,), (1.5,)]),
    (lambda v: FixedLenFeature((3,), int, v), "`default_value`", [5, [1, 2], [[1, 2, 3, 4]]]),
]  # fmt: on


@pytest.mark.parametrize(
    ("call", "word", "value"),
    [(call, word, value) for call, word, values in REFUSED for value in values],
)
def test_refused(call, word, value):
    with pytest.raises(UsageError, match=word):
        call(value)
