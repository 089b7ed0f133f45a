"""The channel between workers, and comparisons of facts over it.

JAX assumes that every process runs the same program on arrays of the same shapes, and returns wrong
numbers otherwise. So workers compare facts first.

An `Offer` is an exchange that begins early: the answers have usually arrived when they are needed.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from replicax._core.errors import WorkersDiffer


@final
@dataclass(frozen=True, eq=False)
class Offer:
    """An exchange that has begun; its answers are received later."""

    #: Waits for the values of all workers, in worker order; may be called once.
    answers: Callable[[], list[Any]]
    #: Drops the answers; may be called in any thread, at any time.
    withdraw: Callable[[], None] = lambda: None


class Channel:
    """A worker's channel to the others; all workers call the same methods with the same names.

    Calls of one name are counted, so that a name may be used again. Calls of different names may
    come in any order and from any thread. If a worker never calls, the watchdog ends all workers.

    This base class is the channel of a process without other workers; `_control` has the other.
    """

    index: int = 0  # of this worker, below `size`; the chief is 0
    size: int = 1
    is_chief: bool = True  # the worker that does the work of one

    def waited(self) -> float:
        """The seconds that this worker has waited in these methods."""
        return 0.0

    def lateness(self) -> list[float]:
        """The seconds that the others have waited for each worker; empty but on the chief."""
        return []

    def hosts(self) -> list[str]:
        """The host of each worker."""
        return [socket.gethostname()]

    def exchange(self, name: str, value: Any) -> list[Any]:
        """Wait for the JSON values of all workers; returns them in worker order.

        Equal values may be one object, and are sent once. `ClusterError` if this worker has left;
        `WorkerLost` if a worker is lost, and `on_failure` has not ended this process.
        """
        return [value]

    def offer(self, name: str, value: Any) -> Offer:
        """Begin an exchange of JSON values without waiting."""
        return Offer(lambda: [value])

    def any(self, name: str, holds: bool) -> bool:
        """Whether `holds` is true on any worker."""
        return any(self.exchange(name, bool(holds)))

    def barrier(self, name: str) -> None:
        """Wait until all workers call this."""
        self.exchange(name, None)

    def bound(self, timeout: float | None) -> None:
        """Set the longest time that a worker waits; only the chief's call counts.

        None stands for `RX_WAIT_LIMIT_SECONDS`.
        """

    def explain(self, error: BaseException, seconds: float = 5.0) -> None:
        """End this process if another worker is lost, which may have caused an error.

        The error of a collective is only a broken connection, so this waits for the watchdog, for
        so many seconds.
        """

    def from_chief(self, name: str, payload: bytes) -> bytes:
        """Send the chief's bytes to all workers; the payloads of the others are ignored."""
        return payload


_current = [Channel()]


def current() -> Channel:
    return _current[0]


def set_current(channel: Channel) -> None:
    _current[:] = [channel]


def agree(what: str, facts: Mapping[str, str], *, fix: str = "") -> None:
    """Compare facts with all workers; each worker calls this at the same point of the program.

    If some differ, every worker raises `WorkersDiffer`, with a table of the differences, and with
    `fix` in place of the usual advice if it is given.
    """
    channel = current()
    if channel.size > 1:
        _compare(what, channel.exchange(f"comparison of {what}", dict(facts)), fix)


@final
class Agreement:
    """A comparison of facts as by `agree`, which begins at once and is checked later."""

    def __init__(self, what: str, facts: Mapping[str, str], *, fix: str = "") -> None:
        self._what, self._fix = what, fix
        self._offer = current().offer(f"comparison of {what}", dict(facts))

    def require(self) -> None:
        """Wait for the others' facts; every worker raises `WorkersDiffer` if some differ."""
        _compare(self._what, self._offer.answers(), self._fix)

    def withdraw(self) -> None:
        self._offer.withdraw()


_MOST_FACTS = 8  # in a table: all weights may differ


def _compare(what: str, found: Sequence[dict[str, str]], fix: str) -> None:
    if found.count(found[0]) == len(found):
        return
    names = list(dict.fromkeys(name for one in found for name in one))
    differing = [name for name in names if len({one.get(name) for one in found}) > 1]
    if differing:
        table = _table(found, current().hosts(), differing)
        raise WorkersDiffer(what, differing, table, fix)


def _table(
    found: Sequence[Mapping[str, str]], hosts: Sequence[str], differing: Sequence[str]
) -> str:
    """A table with a line per fact and worker, after the workers in the minority."""
    lines = _minority([tuple(one.get(name) for name in differing) for one in found])
    for name in differing[:_MOST_FACTS]:
        lines.append(f"    {name}:")
        for worker, (one, host) in enumerate(zip(found, hosts, strict=True)):
            lines.append(f"      worker {worker} ({host}): {one.get(name, 'nothing')}")
    if len(differing) > _MOST_FACTS:
        lines.append(f"    and {len(differing) - _MOST_FACTS} more")
    return "\n".join(lines)


def _minority(answers: Sequence[tuple[str | None, ...]]) -> list[str]:
    """A line with the workers that differ from more than half of all."""
    answer, votes = Counter(answers).most_common(1)[0]
    if 2 * votes <= len(answers):
        return []
    others = [str(worker) for worker, one in enumerate(answers) if one != answer]
    return [f"    All agree but worker {', '.join(others)}."]
