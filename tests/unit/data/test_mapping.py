"""Functions of the user: map inline and in threads, filter, take_while, scan, reduce."""

from __future__ import annotations

import contextvars
import gc
import threading
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

from helpers import begun_threads, wait_until

Dataset = rx.data.Dataset
UsageError = rx.errors.UsageError
AUTOTUNE = rx.data.AUTOTUNE

# Inline, in one thread, in several, and as the time of a call decides.
every_way = pytest.mark.parametrize("calls", [None, 1, 2, 4, AUTOTUNE])


def numbers(ds):
    return [int(x) for x in ds]


def map_threads():
    return begun_threads("replicax-map")


@every_way
def test_map_calls_a_function_of_every_element(calls):
    ds = Dataset.range(20).map(lambda x: x * 10, calls)
    assert numbers(ds) == numbers(ds) == list(range(0, 200, 10))
    assert [b.tolist() for b in ds.batch(15)] == [[*range(0, 150, 10)], [*range(150, 200, 10)]]


class Point(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    ("element", "arguments"),
    [  # as tf.data
        ((1, 2), 2),
        ((1,), 1),
        ((1, 2, None), 3),
        (((1, 2), 3), 2),
        (Point(1, 2), 1),
        ({"a": 1, "b": 2}, 1),
        (1, 1),
    ],
)
def test_parts_of_a_tuple_are_separate_arguments(element, arguments):
    seen = list(Dataset.from_tensors(element).map(lambda *parts: np.int32(len(parts))))
    assert seen == [arguments]


@pytest.mark.parametrize(
    ("result", "dtype", "value"),
    [  # the types are those of tf.data
        (1, np.int32, 1),
        (-(2**31), np.int32, -(2**31)),
        (2**31, np.int64, 2**31),
        (2**40, np.int64, 2**40),
        (1.5, np.float32, 1.5),
        (True, np.bool_, True),
        (1 + 2j, np.complex128, 1 + 2j),
        ([1, 2], np.int32, [1, 2]),
        ([2**40, 1], np.int64, [2**40, 1]),
        ([1, 2.5], np.float32, [1, 2.5]),
        ([True, False], np.bool_, [True, False]),
        ([], np.float32, []),
        (range(3), np.int32, [0, 1, 2]),
        ([(1, 2), (3, 4)], np.int32, [[1, 2], [3, 4]]),
        (["a", "b"], object, ["a", "b"]),
        ([["a"], ["b\0"]], object, [["a"], ["b\0"]]),
        ([b"a\0"], object, [b"a\0"]),
        # Here NumPy's types stay, also in lists; tf.data narrows some of them.
        (np.int64(3), np.int64, 3),
        ([np.int64(3), 2], np.int64, [3, 2]),
        ([np.float64(1)], np.float64, [1]),
        (np.float16(1), np.float16, 1),
        ([np.zeros(2), np.ones(2)], np.float64, [[0, 0], [1, 1]]),
    ],
)
def test_python_values_become_arrays(result, dtype, value):
    mapped = Dataset.range(1).map(lambda _: (result, None))
    ((element, _),) = mapped
    assert isinstance(element, np.ndarray | np.generic)
    assert (element.dtype, element.tolist()) == (dtype, value)
    assert mapped.element_spec[1] is None


def test_a_returned_list_is_a_tuple_as_in_tf_data():
    def both(x):
        return [x, np.float32(x) / 2]

    assert list(Dataset.range(2).map(both)) == [(0, 0.0), (1, 0.5)]
    assert list(Dataset.range(2).map(both).map(lambda x, half: x + half)) == [0.0, 1.5]
    assert list(Dataset.range(3).scan(0, lambda s, x: [s + x, s])) == [0, 0, 1]
    total, count = Dataset.range(4).reduce((0, 0.0), lambda s, x: [s[0] + x, s[1] + 0.5])
    assert (total, count) == (6, 2.0)
    assert (total.dtype.kind, count.dtype.kind) == ("i", "f")
    # Only the outer list: one in a list is an array.
    ((first, second),) = Dataset.range(1).map(lambda x: [[x, x + 1], (x, x)])
    assert first.tolist() == [0, 1]
    assert second == (0, 0)


@pytest.mark.parametrize("text", ["a", b"a\0", np.str_("a"), np.bytes_(b"a")])
def test_text_stays_text(text):
    (element,) = Dataset.range(1).map(lambda _: text)
    assert type(element) in (str, bytes)
    assert element == text


def test_what_has_an_array_is_one():
    class Image:
        __array_interface__ = np.ones((2, 2), np.uint8).__array_interface__

    (element,) = Dataset.range(1).map(lambda _: Image())
    assert (type(element), element.dtype, element.tolist()) == (np.ndarray, np.uint8, [[1, 1]] * 2)


def test_a_jitted_function_of_batches_leaves_its_result_on_the_device():
    ds = Dataset.range(4).batch(2).map(jax.jit(lambda x: jnp.float32(x) / 2))
    batches = list(ds)
    assert all(isinstance(batch, jax.Array) for batch in batches)
    assert [b.tolist() for b in batches] == [[0, 0.5], [1, 1.5]]
    assert [type(b) for b in ds.as_numpy_iterator()] == [np.ndarray] * 2
    assert ds.element_spec == rx.data.ArraySpec((None,), np.float32)


def test_results_come_in_order_whoever_ends_first():
    def slower_at_first(x):
        time.sleep(0.003 * (4 - x % 5))
        return x

    assert numbers(Dataset.range(20).map(slower_at_first, 5)) == list(range(20))


@pytest.mark.parametrize("by_options", [False, True])
def test_results_come_as_they_end_if_order_does_not_matter(by_options):
    another = threading.Event()

    def first_last(x):
        if x == 0:
            another.wait(60)
        return x

    if by_options:
        options = rx.data.Options()
        options.deterministic = False
        ds = Dataset.range(8).map(first_last, 2).with_options(options)
    else:
        ds = Dataset.range(8).map(first_last, 2, deterministic=False)
    iterator = iter(ds)
    first = int(next(iterator))
    another.set()
    assert first != 0
    assert sorted([first, *numbers(iterator)]) == list(range(8))


def test_what_map_says_of_order_outweighs_the_options():
    options = rx.data.Options()
    options.deterministic = False
    ds = Dataset.range(30).map(lambda x: time.sleep(0.001 * (x % 3)) or x, 3, deterministic=True)
    assert numbers(ds.with_options(options)) == list(range(30))


def test_as_many_calls_run_at_a_time_as_asked_for():
    together = threading.Barrier(3, timeout=60)
    ds = Dataset.range(9).map(lambda x: together.wait() * 0 + x, 3)
    assert numbers(ds) == list(range(9))


def test_threads_read_a_few_elements_ahead():
    taken = []
    source = Dataset.from_generator(lambda: (taken.append(n) or n for n in range(100)))
    iterator = iter(source.map(lambda x: x, 2))
    next(iterator)
    assert len(taken) == 4  # two run, two wait
    next(iterator)
    assert len(taken) == 5


def test_quick_functions_are_called_inline_by_autotune():
    names = set()
    ds = Dataset.range(50).map(lambda x: names.add(threading.current_thread().name) or x, AUTOTUNE)
    assert numbers(ds) == list(range(50))
    assert names == {threading.current_thread().name}


def test_slow_functions_are_called_in_threads_by_autotune():
    names = []

    def slow(x):
        names.append(threading.current_thread().name)
        time.sleep(0.002)
        return x

    assert numbers(Dataset.range(20).map(slow, AUTOTUNE)) == list(range(20))
    assert {name.rpartition("_")[0] for name in names[8:]} == {"replicax-map"}


@pytest.mark.parametrize(
    ("in_threads", "reading", "where"),
    [(10.0, 0.0, "here"), (0.1, 0.0, "replicax-map"), (0.1, 5.0, "replicax-map")],
)
def test_autotune_leaves_threads_that_are_slower(monkeypatch, in_threads, reading, where):
    """Threads that wait for Python's lock take longer; a clock here says how long calls take."""
    here, lock, now, names = threading.current_thread(), threading.Lock(), [0.0], []

    def call(x):
        thread = threading.current_thread()
        with lock:
            now[0] += 1.0 if thread is here else in_threads
            names.append("here" if thread is here else thread.name.rpartition("_")[0])
        return x

    def read(x):
        with lock:
            now[0] += reading
        return x

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert numbers(Dataset.range(100).map(read).map(call, AUTOTUNE)) == list(range(100))
    assert names[:8] == ["here"] * 8
    assert names[8:40] == ["replicax-map"] * 32
    assert set(names[60:]) == {where}
    wait_until(lambda: not map_threads())


def test_one_slow_call_does_not_make_a_function_slow():
    def compiles_at_first(x):
        if x == 0:
            time.sleep(0.05)
        return x

    iterator = iter(Dataset.range(30).map(compiles_at_first, AUTOTUNE))
    assert numbers(next(iterator) for _ in range(20)) == list(range(20))
    assert not map_threads()


def test_the_number_of_threads_of_autotune_is_an_option():
    options = rx.data.Options()
    options.threading.private_threadpool_size = 3
    together = threading.Barrier(3, timeout=60)

    def slow(x):
        time.sleep(0.001)
        if 8 <= x < 11:
            together.wait()
        return x

    assert len(numbers(Dataset.range(20).map(slow, AUTOTUNE).with_options(options))) == 20


def test_threads_see_the_context_of_the_reader():
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    assert numbers(Dataset.range(2).map(lambda x: variable.get() + x, 2)) == [7, 8]


def test_no_thread_is_left_when_the_elements_have_ended():
    iterator = iter(Dataset.range(20).map(lambda x: x, 4))
    numbers(iterator)
    wait_until(lambda: not map_threads())
    assert next(iterator, None) is None


def test_no_thread_is_left_when_the_iterator_is_dropped():
    iterator = iter(Dataset.range(10**9).map(lambda x: time.sleep(0.001) or x, 4))
    next(iterator)
    assert map_threads()
    del iterator
    gc.collect()
    wait_until(lambda: not map_threads())


def test_a_slow_call_does_not_keep_what_dropped_its_iterator_waiting(monkeypatch):
    monkeypatch.setattr("replicax.data._nodes.map._EXIT_PATIENCE", 0.01)
    go = threading.Event()
    iterator = iter(Dataset.range(10).map(lambda x: x and go.wait(60) and x, 2))
    assert next(iterator) == 0
    del iterator
    gc.collect()
    assert map_threads()
    go.set()
    wait_until(lambda: not map_threads())


def fails_at_three(x):
    if x == 3:
        raise KeyError("three")
    return x


@every_way
def test_an_error_names_the_function_and_the_element(calls):
    iterator = iter(Dataset.range(9).map(fails_at_three, calls))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(
        rx.errors.MapFailed,
        match=r"fails_at_three \(test_mapping.py:\d+\).*KeyError.*element 3.*'three'",
    ) as failed:
        next(iterator)
    assert isinstance(failed.value.__cause__, KeyError)
    assert numbers(iterator) == [4, 5, 6, 7, 8]  # as tf.data, who wants to can go on


@pytest.mark.parametrize(
    "read",
    [
        lambda ds: list(ds.filter(fails_at_three)),
        lambda ds: list(ds.scan(0, lambda s, x: (s, fails_at_three(x)))),
        lambda ds: ds.reduce(0, lambda s, x: fails_at_three(x)),
        lambda ds: list(ds.flat_map(lambda x: Dataset.range(fails_at_three(x)))),
    ],
)
def test_errors_of_other_functions_name_the_element(read):
    with pytest.raises(rx.errors.MapFailed, match="KeyError.* for element 3"):
        read(Dataset.range(5))


@every_way
def test_after_an_error_elements_keep_their_numbers(calls):
    iterator = iter(Dataset.range(9).map(lambda x: fails_at_three(x % 4), calls))
    for number in (3, 7):
        with pytest.raises(rx.errors.MapFailed, match=f"for element {number}"):
            numbers(iterator)


def test_an_error_ends_the_batch_that_it_is_in():
    with pytest.raises(rx.errors.MapFailed, match="element 3.*filter"):
        list(Dataset.range(9).map(fails_at_three).batch(4))


@pytest.mark.parametrize("calls", [None, 2])
def test_an_error_of_the_source_comes_after_the_results_before_it(calls):
    def source():
        yield from range(3)
        raise OSError("no more")

    iterator = iter(Dataset.from_generator(source).map(lambda x: time.sleep(0.001) or x, calls))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no more"):
        next(iterator)
    assert next(iterator, None) is None


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (partial(fails_at_three), "functools.partial"),
        (jax.jit(lambda x: x.no_such_thing), r"<lambda> \(test_mapping.py"),
        (lambda x: next(iter(())), "StopIteration"),
    ],
)
def test_errors_of_all_kinds_of_functions(fn, name):
    with pytest.raises(rx.errors.MapFailed, match=name):
        list(Dataset.range(9).map(fn))


def test_errors_of_replicax_pass_through():
    def function(x):
        raise UsageError("mine")

    with pytest.raises(UsageError, match="^mine$"):
        list(Dataset.range(1).map(function))


def test_the_spec_is_seen_from_one_call():
    calls = []

    def once(x):
        calls.append(threading.current_thread().name)
        return {"y": jnp.float32(x), "text": "a", "rows": [1, 2]}

    ds = Dataset.range(1000).map(lambda x: x + 1).shuffle(500).prefetch(2).map(once, 4)
    spec = rx.data.ArraySpec
    assert ds.element_spec == {
        "y": spec((), np.float32), "text": spec((), str), "rows": spec((2,), np.int32)
    }  # fmt: skip
    assert calls == [threading.current_thread().name]


def test_filter_keeps_what_is_true():  # as tf.data
    ds = Dataset.from_tensor_slices(([1, 2, 3], [3, 2, 1])).filter(lambda a, b: a > b)
    assert [(int(a), int(b)) for a, b in ds] == [(3, 1)]


def test_take_while_ends_at_the_first_that_is_false():  # as tf.data
    source = []
    ds = Dataset.from_generator(lambda: (source.append(n) or n for n in [1, 2, 5, 1, 2]))
    ds = ds.take_while(lambda x: x < 4)
    assert [b.tolist() for b in ds.batch(10)] == [[1, 2]]
    assert source == [1, 2, 5]
    iterator = iter(ds)
    assert (numbers(iterator), next(iterator, None)) == ([1, 2], None)


@pytest.mark.parametrize("verdict", [True, 1, np.True_, np.array(True), np.array([1]), jnp.bool(1)])
def test_truth_in_all_its_forms(verdict):
    assert numbers(Dataset.range(2).filter(lambda x: verdict)) == [0, 1]


def test_scan_hands_on_a_state():  # as tf.data
    ds = Dataset.range(5).scan(np.int64(0), lambda s, x: (s + x, s * x))
    assert numbers(ds) == numbers(ds) == [0, 0, 2, 9, 24]
    pairs = Dataset.zip(Dataset.range(4), Dataset.range(4))
    assert numbers(pairs.scan(1, lambda s, e: (s + e[0] + e[1], s))) == [1, 1, 3, 7]


def test_reduce_folds_the_elements():
    assert Dataset.range(5).reduce(0, lambda s, x: s + x) == 10
    assert Dataset.range(0).reduce(7, lambda s, x: s + x) == 7
    pairs = Dataset.from_tensor_slices(([1, 2], [3, 4]))
    assert pairs.reduce((0, 0), lambda s, e: (s[0] + e[0], s[1] + e[1])) == (3, 7)


def test_apply_calls_a_function_of_the_data_set():
    assert numbers(Dataset.range(5).apply(lambda ds: ds.skip(3))) == [3, 4]
