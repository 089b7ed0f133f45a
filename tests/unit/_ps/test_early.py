"""What is kept while servers start: values of variables, and what servers are told, in order."""

import threading

import numpy as np
import pytest

from replicax._ps.store import servers
from replicax._ps.store.servers import Early


class Home:
    """Notes with which values it is made on servers."""

    def __init__(self, told, name):
        self._told, self._name = told, name
        self.failure = None

    def create(self, value):
        if self.failure is not None:
            raise self.failure
        self._told.append((self._name, value.tolist()))


@pytest.fixture
def there():
    """Servers are there when this is set."""
    event = threading.Event()
    yield event
    event.set()


def waiting(there):
    return Early(lambda: there.wait() and None)


def test_servers_get_what_was_written_last_in_the_order_of_first_writes(there):
    told, early = [], waiting(there)
    a, b = Home(told, "a"), Home(told, "b")
    given = np.ones(2)
    assert early.keep(a, given, is_new=True)
    given[:] = 5  # the caller's own
    assert early.tell(lambda: told.append("between"))
    assert early.keep(b, np.zeros(1), is_new=True)
    assert early.value(a).tolist() == [1, 1]
    assert early.keep(a, np.full(2, 3.0), is_new=False)
    assert early.value(a).tolist() == [3, 3]
    assert not told
    there.set()
    early.settle()
    assert told == [("a", [3, 3]), "between", ("b", [0])]
    assert early.is_over
    assert early.value(a) is None
    assert not early.keep(a, given, is_new=False)
    assert not early.tell(lambda: None)


def test_what_is_told_may_ask_whether_all_has_been_told(there):
    early, told = waiting(there), []
    early.tell(lambda: (early.settle(), told.append(1)))
    there.set()
    early.settle()
    assert told == [1]


def test_a_failure_is_told_each_time_and_what_failed_is_tried_again(there):
    told, early = [], waiting(there)
    homes = [Home(told, "a"), Home(told, "b")]
    for home in homes:
        early.keep(home, np.zeros(1), is_new=True)
    homes[1].failure = OSError("no disk")
    there.set()
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            early.settle()
    assert early.value(homes[1]) is not None
    homes[1].failure = None
    early.settle()
    assert told == [("a", [0]), ("b", [0])]


def test_that_servers_do_not_come_is_told_each_time():
    def meet():
        raise OSError("they did not come")

    early = Early(meet)
    for _ in range(2):
        with pytest.raises(OSError, match="they did not come"):
            early.settle()


def test_who_waits_hears_of_the_end(there):
    early, found = waiting(there), []

    def wait():
        try:
            early.settle()
        except OSError as error:
            found.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    early.end(OSError("closed"))
    thread.join()
    assert found == ["closed"]
    early.end(OSError("again"))  # the first counts
    with pytest.raises(OSError, match="closed"):
        early.settle()


def test_more_than_some_bytes_are_not_kept(there, monkeypatch):
    monkeypatch.setattr(servers, "MOST_BYTES", 100)
    early = waiting(there)
    assert early.keep(Home([], "a"), np.zeros(12), is_new=True)
    assert not early.keep(Home([], "b"), np.zeros(1), is_new=True)
