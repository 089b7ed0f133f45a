"""What the first batch will look like, known while it is being made."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from replicax.data import Dataset

from helpers import begun_threads, wait_until


def rows(waits_for=None, make=lambda number: np.float32([number, 0.0])):
    def generate():
        for number in range(8):
            if number == 1 and waits_for is not None:
                waits_for.wait(60)  # the limit is for one that never comes
            yield make(number), number

    return Dataset.from_generator(generate)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda data: data.batch(4), (4, 2)),
        (lambda data: data.shuffle(5).batch(4, drop_remainder=True).prefetch(2), (4, 2)),
        (lambda data: data.map(lambda x, y: (np.stack([x, x]), y)).batch(3), (3, 2, 2)),
        (
            lambda data: data.skip(0).take(7).repeat().batch(2, drop_remainder=True).batch(3),
            (3, 2, 2),
        ),
        (lambda data: data.padded_batch(4, padded_shapes=([5], [])), (4, 5)),
    ],
    ids=["batch", "shuffle", "map", "batches of batches", "padded"],
)
def test_the_first_element_says_what_its_batch_will_be(change, shape):
    release = threading.Event()
    batches = change(rows(release)).host_batches()
    x, y = batches.coming()
    assert (x.shape, x.dtype) == (shape, np.float32)
    assert y.shape == shape[: len(y.shape)]
    release.set()
    found, _ = next(batches)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert batches.coming() is None  # one was taken


@pytest.mark.parametrize(
    "data",
    [
        Dataset.range(8).batch(4),  # rows in memory
        rows(make=str).batch(4),
        rows(make=lambda number: np.zeros(number)).padded_batch(4),
        Dataset.range(8).map(lambda x: x + 1.0).batch(8),  # the only one, which may be smaller
        rows().filter(lambda *row: False).batch(4),
        rows().take(0).batch(4),
    ],
    ids=["memory", "text", "as long as the longest", "the last", "filtered", "none"],
)
def test_what_cannot_be_known_is_not_guessed(data):
    assert data.host_batches().coming() is None


def test_a_batch_that_is_there_needs_no_guess():
    batches = rows().batch(4).prefetch(1).host_batches()
    batches.coming()
    wait_until(lambda: batches._ahead.has_made)
    assert batches.coming() is None
    assert next(batches)[1].tolist() == [0, 1, 2, 3]


def test_an_error_before_the_first_element_comes_from_the_batch():
    def generate():
        raise ArithmeticError("of the data")
        yield

    batches = Dataset.from_generator(generate).batch(2).host_batches()
    assert batches.coming() is None
    with pytest.raises(ArithmeticError, match="of the data"):
        next(batches)


def test_who_only_asked_leaves_no_thread():
    release = threading.Event()
    batches = rows(release).batch(4).host_batches()
    assert batches.coming() is not None
    release.set()
    del batches
    wait_until(lambda: not begun_threads("replicax-ahead"))


def test_rows_come_as_without_it():
    data = rows().shuffle(5, seed=2).batch(3)
    read = [x.tolist() for x, _ in data.host_batches()]
    assert read == [x.tolist() for x, _ in rows().shuffle(5, seed=2).batch(3)]
