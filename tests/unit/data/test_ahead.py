"""Reading ahead in a thread: how far, in what order, and when the thread ends."""

import contextlib
import contextvars
import gc
import threading
import time
import weakref

import pytest

import replicax as rx
from replicax.data import Dataset
from replicax.data._nodes.ahead import Ahead, Prefetch

from helpers import begun_threads, run_python, wait_until


def numbers(ds):
    return [int(x) for x in ds]


def threads():
    return begun_threads("replicax-ahead")


class Counted:
    """A generator function that counts what was taken of it, and may fail."""

    def __init__(self, size, fails_at=None):
        self.size, self.fails_at, self.taken = size, fails_at, 0

    def __call__(self):
        for n in range(self.size):
            if n == self.fails_at:
                raise OSError("no more")
            self.taken += 1
            yield n


@pytest.mark.parametrize("size", [1, 2, 5, rx.data.AUTOTUNE])
def test_elements_come_in_order(size):
    ds = Dataset.range(20).prefetch(size)
    assert numbers(ds) == numbers(ds) == list(range(20))
    assert [b.tolist() for b in ds.batch(15)] == [[*range(15)], [*range(15, 20)]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_just_so_many_elements_are_read_ahead(size):
    source = Counted(100)
    iterator = iter(Dataset.from_generator(source).prefetch(size))
    for taken in (1, 2, 3):
        next(iterator)
        wait_until(lambda taken=taken: source.taken == taken + size)
    time.sleep(0.02)
    assert source.taken == 3 + size


def test_nothing_is_read_before_the_first_element_is_asked_for():
    source = Counted(10)
    iter(Dataset.from_generator(source).prefetch(2)).get_state()
    assert (source.taken, threads()) == (0, [])


def test_the_thread_ends_with_the_elements():
    iterator = iter(Dataset.range(3).prefetch(2))
    numbers(iterator)
    wait_until(lambda: not threads())
    assert next(iterator, None) is None


@pytest.mark.parametrize(
    ("ahead", "count"),
    [
        (lambda ds: ds.prefetch(0), 0),
        (lambda ds: ds.prefetch(2), 1),
        (lambda ds: ds.prefetch(2).map(lambda x: x, 2).prefetch(2), 2),
        (lambda ds: ds.interleave(lambda x: ds, cycle_length=3, num_parallel_calls=2), 3),
    ],
)
def test_the_threads_end_when_the_iterator_is_dropped(ahead, count):
    iterator = iter(ahead(Dataset.range(10**9)))
    for _ in range(3):
        next(iterator)
    assert len(threads()) == count
    del iterator
    gc.collect()
    wait_until(lambda: not begun_threads(("replicax-ahead", "replicax-map")))


def test_the_thread_ends_when_a_position_is_set():
    iterator = iter(Dataset.range(10**9).prefetch(2))
    next(iterator)
    iterator.set_state(iterator.get_state())
    gc.collect()
    wait_until(lambda: not threads())
    assert next(iterator) == 1


def test_an_error_comes_after_the_elements_before_it_and_ends_the_thread():
    iterator = iter(Dataset.from_generator(Counted(9, fails_at=3)).prefetch(5))
    assert [int(next(iterator)) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="no more"):
        next(iterator)
    wait_until(lambda: not threads())
    assert next(iterator, None) is None


@pytest.mark.parametrize(
    "ahead", [lambda ds: ds.prefetch(2), lambda ds: ds.map(lambda x: x, 2).prefetch(2)]
)
def test_an_error_does_not_keep_its_iterator(ahead):
    def failed():
        iterator = iter(ahead(Dataset.from_generator(Counted(9, fails_at=3))))
        with contextlib.suppress(OSError):
            numbers(iterator)
        return weakref.ref(iterator)

    gc.disable()
    try:
        there = failed()
        wait_until(lambda: there() is None)  # the thread lets go of the error a moment later
    finally:
        gc.enable()


def test_the_thread_sees_the_context_of_the_reader():
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)
    assert numbers(Dataset.range(2).map(lambda x: variable.get() + x).prefetch(1)) == [7, 8]


def test_what_is_closed_has_ended():
    numbered = iter(range(10))
    ahead = Ahead(lambda: next(numbered), lambda: None, 2)
    assert next(ahead) == 0
    ahead.close()
    with pytest.raises(StopIteration):
        next(ahead)
    wait_until(lambda: not threads())


def test_the_next_portion_is_made_when_one_was_taken():
    made = []

    def produce():
        made.append(len(made))
        return made[-1]

    ahead = Ahead(produce, lambda: len(made), 2, 3)
    assert [next(ahead), next(ahead)] == [0, 1]
    wait_until(lambda: len(made) == 3)
    threading.Event().wait(0.05)  # one more would have been made meanwhile
    assert (len(made), ahead.state) == (3, 2)
    assert next(ahead) == 2
    wait_until(lambda: len(made) == 6)
    assert [next(ahead) for _ in range(7)] == list(range(3, 10))
    assert ahead.state == 10
    ahead.close()
    wait_until(lambda: not threads())


@pytest.mark.parametrize("how", ["close", "end", "error"])
def test_all_who_wait_hear_that_there_is_no_more(how):
    go_on, heard = threading.Event(), []

    def produce():
        assert go_on.wait(60)
        raise OSError("no more") if how == "error" else StopIteration

    ahead = Ahead(produce, lambda: None, 1)

    def wait():
        try:
            next(ahead)
        except (StopIteration, OSError) as error:
            heard.append(type(error))

    readers = [threading.Thread(target=wait) for _ in range(3)]
    for reader in readers:
        reader.start()
    if how == "close":
        ahead.close()
    go_on.set()
    for reader in readers:
        reader.join(60)
    ended = [StopIteration] * 3 if how != "error" else [OSError, StopIteration, StopIteration]
    assert sorted(heard, key=str) == sorted(ended, key=str)


def test_interruptions_of_the_reader_leave_the_thread_alone():
    # What the thread raises is handed over, whatever it is.
    def raises():
        raise KeyboardInterrupt

    ahead = Ahead(raises, lambda: None, 1)
    with pytest.raises(KeyboardInterrupt):
        next(ahead)
    wait_until(lambda: not threads())


def test_a_program_can_end_while_it_reads_ahead():
    out = run_python(
        """
        import atexit, time

        # Registered first, it is called last.
        atexit.register(lambda: print("in time" if time.monotonic() - ended < 60 else "late"))
        import replicax as rx

        def slow(x):
            time.sleep(0.001)
            return x

        numbers = rx.data.Dataset.range(10**9)
        iterators = [
            iter(numbers.prefetch(2)),
            iter(numbers.map(slow, 4)),
            iter(numbers.map(slow, 4).prefetch(2)),
            iter(numbers.interleave(lambda x: numbers.map(slow), num_parallel_calls=2)),
        ]
        print(*[int(next(iterator)) for iterator in iterators], flush=True)
        ended = time.monotonic()
        """
    )
    assert out.split() == ["0", "0", "0", "0", "in", "time"]


@pytest.mark.parametrize("portion", [1, 3, 50])
def test_portions_change_neither_elements_nor_positions(portion):
    node = Prefetch(Dataset.range(20).map(lambda x: x).node, 2, portion=portion)
    for taken in (0, 1, 3, 4, 19, 20):
        cursor = node.open((0,))
        assert [int(x) for x in cursor.read(taken)] == list(range(taken))
        again = node.open((0,))
        again.set_state(cursor.get_state())
        assert [int(x) for x in again.read(99)] == list(range(taken, 20))
