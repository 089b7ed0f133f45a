"""Data sets on disk: what was saved is loaded, in order or by number; half of one is none."""

import collections
import gzip
import json
import os
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.data import _load
from replicax.data._save import NAME

Dataset = rx.data.Dataset
Pair = collections.namedtuple("Pair", "whole part")

EITHER = pytest.mark.parametrize("compression", [None, "GZIP"])


def mixed(number):
    """An element with something of every kind."""
    return {
        "image": np.full((2, 3), number, np.float32),
        "pair": Pair(np.int8(number), jnp.full(2, number, jnp.bfloat16)),
        "ragged": np.arange(number % 4 * 2, dtype=np.int16).reshape(-1, 2),
        "text": "ä" * (number % 3),
        "bytes": bytes(range(number % 5)),
        "texts": (np.array(["x" * k for k in range(number % 3)], object), None),
        "time": np.datetime64("2020-01-01") + np.timedelta64(number, "D"),
        "empty": np.zeros((0, 3)),
        "numbered": {7: np.array([b"a" * number, b""], object)},
    }


def plain(element):
    """An element as lists, with the type of each leaf."""
    leaves, tree = jax.tree.flatten(element)
    arrays = [leaf if isinstance(leaf, str | bytes) else np.asarray(leaf) for leaf in leaves]
    return str(tree), [
        (type(a), a) if isinstance(a, str | bytes) else (a.dtype, a.shape, a.tolist())
        for a in arrays
    ]


def elements(count):
    return Dataset.from_generator(lambda: map(mixed, range(count)))


def numbers(dataset):
    return [int(x) for x in dataset]


@EITHER
def test_elements_are_loaded_as_they_were_saved(tmp_path, compression):
    elements(12).save(tmp_path / "a", compression)
    loaded = Dataset.load(tmp_path / "a")
    assert [plain(e) for e in loaded] == [plain(mixed(n)) for n in range(12)]
    assert [plain(e) for e in loaded.skip(5).take(4)] == [plain(mixed(n)) for n in range(5, 9)]
    assert len(loaded) == 12


@EITHER
def test_axes_that_vary_are_open_in_the_spec(tmp_path, compression):
    elements(5).save(tmp_path / "a", compression)
    spec = Dataset.load(tmp_path / "a").element_spec
    assert spec["ragged"] == rx.data.ArraySpec((None, 2), np.int16)
    assert spec["texts"][0] == rx.data.ArraySpec((None,), str)
    assert spec["numbered"][7] == rx.data.ArraySpec((2,), bytes)
    assert spec["pair"].part == rx.data.ArraySpec((2,), jnp.bfloat16)


def test_a_named_tuple_that_the_program_does_not_have_is_one_like_it(tmp_path):
    element = collections.namedtuple("Gone", "a b")(np.int32(1), np.int32(2))
    Dataset.from_generator(lambda: iter([element])).save(tmp_path / "a")
    (found,) = Dataset.load(tmp_path / "a")
    assert (type(found).__name__, found._asdict()) == ("Gone", {"a": 1, "b": 2})


def test_arrays_of_texts_may_be_empty_before_it_is_known_of_what(tmp_path):
    rows = [[], [b"x"], []]
    arrays = [np.array(row, object) for row in rows]
    Dataset.from_generator(lambda: iter(arrays)).save(tmp_path / "a")
    assert [row.tolist() for row in Dataset.load(tmp_path / "a")] == rows


@EITHER
def test_a_data_set_without_elements_can_be_saved(tmp_path, compression):
    Dataset.range(0).save(tmp_path / "a", compression)
    assert list(Dataset.load(tmp_path / "a")) == []
    with pytest.raises(rx.errors.UsageError, match="data set is empty"):
        _ = Dataset.load(tmp_path / "a").element_spec


def test_the_files_are_those_of_numpy(tmp_path):
    Dataset.from_tensor_slices(np.arange(6.0).reshape(3, 2)).save(tmp_path / "a")
    found = np.load(tmp_path / "a" / "0.values.npy", allow_pickle=False)
    assert found.tolist() == [[0, 1], [2, 3], [4, 5]]


def shuffled(folder):
    """Batches in random order, and what they should be."""
    x, y = np.arange(40.0).reshape(20, 2), np.arange(20)
    if not folder.exists():
        Dataset.from_tensor_slices((x, y)).save(folder)
    in_memory = Dataset.from_tensor_slices((x, y)).shuffle(20, seed=1).batch(8)
    return Dataset.load(folder).shuffle(20, seed=1).batch(8), in_memory


@pytest.mark.parametrize("mapped", [0, 10**9])
def test_rows_are_gathered_by_number_from_small_and_large_files(tmp_path, monkeypatch, mapped):
    monkeypatch.setattr(_load, "_MAPPED", mapped)
    found, expected = shuffled(tmp_path / "a")
    assert [plain(b) for b in found] == [plain(b) for b in expected]
    in_order = Dataset.load(tmp_path / "a").batch(7)
    assert np.concatenate([y for _, y in in_order]).tolist() == list(range(20))
    assert Dataset.load(tmp_path / "a").node.table.row_bytes == 24


@pytest.mark.parametrize("mapped", [0, 10**9])
def test_a_batch_is_a_copy(tmp_path, monkeypatch, mapped):
    monkeypatch.setattr(_load, "_MAPPED", mapped)
    Dataset.range(4).save(tmp_path / "a")
    loaded = Dataset.load(tmp_path / "a")
    for batch in loaded.batch(4):
        batch[:] = 7
    assert numbers(loaded) == [0, 1, 2, 3]


def test_texts_and_ragged_rows_have_numbers_too(tmp_path):
    texts = ["a", "bb", "", "ddd", "ä"]
    Dataset.from_tensor_slices((texts, np.arange(5))).save(tmp_path / "a")
    batches = Dataset.load(tmp_path / "a").shuffle(5, seed=0).batch(5)
    ((found, places),) = batches
    assert found.tolist() == [texts[place] for place in places]
    assert Dataset.load(tmp_path / "a").node.table.row_bytes is None


def test_a_loaded_data_set_is_sent_to_another_process_by_its_path(tmp_path):
    Dataset.range(1000).save(tmp_path / "a")
    packed = pickle.dumps(Dataset.load(tmp_path / "a").node)
    assert len(packed) < 1000
    assert numbers(Dataset(pickle.loads(packed)))[-1] == 999


@EITHER
def test_a_position_is_exact(tmp_path, compression):
    elements(9).save(tmp_path / "a", compression)
    iterator = iter(Dataset.load(tmp_path / "a"))
    for _ in range(4):
        next(iterator)
    again = iter(Dataset.load(tmp_path / "a"))
    again.set_state(iterator.get_state())
    assert [plain(e) for e in again] == [plain(mixed(n)) for n in range(4, 9)]


def test_save_replaces_a_data_set_and_nothing_else(tmp_path):
    Dataset.range(3).save(tmp_path / "a")
    Dataset.load(tmp_path / "a").map(lambda x: x + 1).save(tmp_path / "a")
    assert numbers(Dataset.load(tmp_path / "a")) == [1, 2, 3]
    assert os.listdir(tmp_path) == ["a"]
    (tmp_path / "other").write_text("mine")
    with pytest.raises(rx.errors.UsageError, match="other"):
        Dataset.range(3).save(tmp_path / "other")


def test_a_save_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(rx.errors.MapFailed):
        Dataset.range(3).map(lambda x: 1 // int(x - 2)).save(tmp_path / "a")
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal
from replicax.data import Dataset

def slow(x):
    return x if x < 3 else os.kill(os.getpid(), signal.SIGKILL)

Dataset.range(9).map(slow).save("a")
"""


def test_a_killed_save_leaves_no_data_set_and_the_next_one_cleans_up(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED], cwd=tmp_path, timeout=200, check=False)
    assert done.returncode == -9
    assert len(os.listdir(tmp_path)) == 1
    with pytest.raises(rx.errors.UsageError, match="interrupted `save`"):
        Dataset.load(tmp_path / "a")
    Dataset.range(2).save(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("fn", "phrase"),
    [
        (lambda x: np.array([object()]), "an array that holds object"),
        (lambda x: Dataset.range(2), "an array that holds Dataset"),
        (lambda x: jax.random.key(0), "a PRNGKeyArray"),
        (lambda x: np.zeros(2, [("a", int)]), "an array of type "),
        (lambda x: (), "nest"),
        (lambda x: x if x < 1 else (x, x), r"a nest PyTreeDef\(\(\*, \*\)\) after 1 of"),
        (lambda x: x if x < 1 else np.float32(x), "float32\\) after 1 of"),
        (lambda x: np.zeros([2] * int(x)), "number of axes"),
        (lambda x: {(1, 2): x}, "named tuples"),
    ],
)
def test_elements_that_have_no_form_on_disk_are_refused(tmp_path, fn, phrase):
    with pytest.raises(rx.errors.UsageError, match=phrase):
        Dataset.range(3).map(fn).save(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_an_infinite_data_set_is_not_saved(tmp_path):
    with pytest.raises(rx.errors.UsageError, match="`take`.*`repeat`"):
        Dataset.range(3).repeat().save(tmp_path / "a")


def test_the_compression_is_known_and_the_same(tmp_path):
    Dataset.range(3).save(tmp_path / "a", "GZIP")
    assert numbers(Dataset.load(tmp_path / "a", compression="GZIP")) == [0, 1, 2]
    with pytest.raises(rx.errors.UsageError, match="`compression`.*'GZIP'"):
        Dataset.range(3).save(tmp_path / "a", "ZIP")
    Dataset.range(3).save(tmp_path / "a")
    with pytest.raises(rx.errors.UsageError, match="compression=None, not 'GZIP'"):
        Dataset.load(tmp_path / "a", compression="GZIP")


def test_another_version_is_refused(tmp_path):
    Dataset.range(3).save(tmp_path / "a")
    change(tmp_path / "a", version=99)
    with pytest.raises(rx.errors.UsageError, match="version 99"):
        Dataset.load(tmp_path / "a")


def change(folder, **fields):
    path = folder / NAME
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 1}'])
def test_a_damaged_description_is_a_corrupt_record(tmp_path, text):
    Dataset.range(3).save(tmp_path / "a")
    (tmp_path / "a" / NAME).write_text(text)
    with pytest.raises(rx.errors.CorruptRecord, match="replicax.json"):
        Dataset.load(tmp_path / "a")


def test_files_that_are_cut_off_or_missing_are_corrupt_records(tmp_path):
    Dataset.range(3).save(tmp_path / "a")
    values = tmp_path / "a" / "0.values.npy"
    os.truncate(values, 4100)
    with pytest.raises(rx.errors.CorruptRecord, match="4100"):
        Dataset.load(tmp_path / "a")
    values.unlink()
    with pytest.raises(rx.errors.CorruptRecord, match="is missing"):
        Dataset.load(tmp_path / "a")


def test_a_file_that_shrinks_while_it_is_read_is_a_corrupt_record(tmp_path, monkeypatch):
    monkeypatch.setattr(_load, "_MAPPED", 0)
    Dataset.range(9).save(tmp_path / "a")
    loaded = Dataset.load(tmp_path / "a")
    os.truncate(tmp_path / "a" / "0.values.npy", 4100)
    with pytest.raises(rx.errors.CorruptRecord, match=r"0\.values\.npy.*value 0"):
        list(loaded)
    with pytest.raises(rx.errors.CorruptRecord, match="ends before value "):
        list(loaded.shuffle(9, seed=0).batch(9))


def test_a_compressed_file_with_too_few_values_is_a_corrupt_record(tmp_path):
    Dataset.range(9).save(tmp_path / "a", "GZIP")
    values = tmp_path / "a" / "0.values.npy.gz"
    values.write_bytes(gzip.compress(gzip.decompress(values.read_bytes())[:4100]))
    change(tmp_path / "a", files={values.name: values.stat().st_size})
    with pytest.raises(rx.errors.CorruptRecord, match=r"0\.values\.npy\.gz.*value 1"):
        list(Dataset.load(tmp_path / "a"))


@pytest.fixture
def counted(tmp_path):
    """A data set with a file cache, and the calls before it."""
    calls = []
    source = Dataset.range(5).map(lambda x: calls.append(int(x)) or x)
    return source.shuffle(5).cache(tmp_path / "deep" / "cache"), calls


def test_a_later_program_reads_what_is_there(counted, tmp_path):
    kept = numbers(counted[0])
    later = Dataset.from_tensor_slices(["other"]).cache(tmp_path / "deep" / "cache")
    assert numbers(later) == kept
    assert (len(later), later.element_spec) == (5, rx.data.ArraySpec((), np.int64))


def test_a_pass_that_is_broken_off_keeps_nothing(counted, tmp_path):
    dataset, calls = counted
    iterator = iter(dataset)
    next(iterator)
    del iterator
    assert os.listdir(tmp_path / "deep") == []
    numbers(dataset)
    assert len(calls) == 10


def test_a_pass_with_an_error_in_it_keeps_nothing(tmp_path):
    iterator = iter(Dataset.range(4).map(lambda x: 1 // int(x - 1)).cache(tmp_path / "a"))
    next(iterator)
    with pytest.raises(rx.errors.MapFailed):
        next(iterator)
    assert numbers(iterator) == [1, 0]
    del iterator
    assert os.listdir(tmp_path) == []


def test_two_passes_may_fill_one_cache_at_once(counted, tmp_path):
    dataset, _ = counted
    a, b = iter(dataset), iter(dataset)
    both = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert all(x == y for x, y in both)
    assert os.listdir(tmp_path / "deep") == ["cache"]
    assert numbers(dataset) == [x for x, _ in both]


def test_a_pass_from_a_position_fills_the_cache_as_a_whole(counted):
    dataset, _ = counted
    iterator = iter(dataset)
    first = [int(next(iterator)) for _ in range(3)]
    again = iter(dataset)
    again.set_state(iterator.get_state())
    rest = numbers(again)
    assert numbers(dataset) == first + rest


def test_looking_at_the_elements_writes_no_cache(counted, tmp_path):
    assert counted[0].element_spec == rx.data.ArraySpec((), np.int64)
    assert len(counted[0]) == 5
    assert os.listdir(tmp_path) == []


def test_a_cache_is_not_written_over_something_else(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(rx.errors.UsageError, match="/a"):
        list(Dataset.range(3).cache(tmp_path / "a"))
