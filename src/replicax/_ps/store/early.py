"""`Early`: what a program does to variables while the servers' processes still start.

Meanwhile it builds its model and traces a step. Nobody else knows these variables yet, so their
values are those written last; servers get them when somebody needs a server.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, final

import numpy as np

if TYPE_CHECKING:
    from replicax._ps.store.home import ServerHome

MOST_BYTES = 256 << 20  # more bytes are not kept twice: then servers are waited for


@final
class Early:
    """Keeps values of variables, and calls to servers, until there are servers.

    `meet` waits for all of these, in a thread of its own.
    """

    def __init__(self, meet: Callable[[], None]) -> None:
        self._found: Future[Exception | None] = Future()
        # Reentrant: the calls that are sent at last ask whether everything has been sent.
        self._lock = threading.RLock()
        self._values: dict[ServerHome, np.ndarray] = {}
        self._later: dict[Any, Callable[[], object]] = {}  # in order
        self._is_sending = self.is_over = False
        threading.Thread(
            target=self._meet, args=(meet,), name="replicax-servers", daemon=True
        ).start()

    def keep(self, home: ServerHome, value: np.ndarray, *, is_new: bool) -> bool:
        """Keep the value of a variable that no server has; False if servers must be told now."""
        with self._lock:
            known = is_new or home in self._values
            size = value.nbytes + sum(kept.nbytes for kept in self._values.values())
            if self.is_over or self._is_sending or not known or size > MOST_BYTES:
                return False
            # A copy, because the caller may change the array.
            self._values[home] = np.array(value)
            self._later[home] = functools.partial(self._create, home)
            return True

    def value(self, home: ServerHome) -> np.ndarray | None:
        """The value of a variable, if it is kept here."""
        with self._lock:
            return self._values.get(home)

    def tell(self, call: Callable[[], object]) -> bool:
        """Make a call once there are servers, after all earlier ones; False: make it now."""
        with self._lock:
            if self.is_over or self._is_sending:
                return False
            self._later[call] = call
            return True

    def settle(self) -> None:
        """Wait for the servers and send them everything kept here."""
        if self.is_over:
            return
        error = self._found.result()
        if error is not None:
            raise error.with_traceback(None)
        with self._lock:
            if self._is_sending:
                return
            self._is_sending = True
            try:
                while self._later:
                    key = next(iter(self._later))
                    self._later[key]()
                    del self._later[key]  # after a failure the next caller tries again
                self.is_over = True
            finally:
                self._is_sending = False

    def end(self, error: Exception) -> None:
        """Stop all waiting."""
        with self._lock:
            if not self._found.done():
                self._found.set_result(error)

    def _create(self, home: ServerHome) -> None:
        home.create(self._values[home])
        del self._values[home]

    def _meet(self, meet: Callable[[], None]) -> None:
        failure = None
        try:
            meet()
        except Exception as error:  # for whoever needs a server
            failure = error
        with self._lock:
            if not self._found.done():
                self._found.set_result(failure)
