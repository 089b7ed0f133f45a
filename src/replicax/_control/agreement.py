"""Comparison of facts that must be the same on all workers, before they are relied on.

JAX assumes that every process runs the same program on arrays of the same shapes, and returns wrong
numbers otherwise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import final

from replicax._control._channel import current
from replicax._core.errors import WorkersDiffer


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
    """A comparison of facts, as by `agree`, that begins at once and is checked later."""

    def __init__(self, what: str, facts: Mapping[str, str], *, fix: str = "") -> None:
        self._what, self._fix = what, fix
        self._offer = current().offer(f"comparison of {what}", dict(facts))

    def require(self) -> None:
        """Wait for the others' facts; every worker raises `WorkersDiffer` if some differ."""
        _compare(self._what, self._offer.answers(), self._fix)

    def withdraw(self) -> None:
        self._offer.withdraw()


_MOST_FACTS = 8  # in a table: if weights differ, all of them may


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
    """A table with a line per worker and fact, after the minority if there is one."""
    lines = _outvoted([tuple(one.get(name) for name in differing) for one in found])
    for name in differing[:_MOST_FACTS]:
        lines.append(f"    {name}:")
        for worker, (one, host) in enumerate(zip(found, hosts, strict=True)):
            lines.append(f"      worker {worker} ({host}): {one.get(name, 'nothing')}")
    if len(differing) > _MOST_FACTS:
        lines.append(f"    and {len(differing) - _MOST_FACTS} more")
    return "\n".join(lines)


def _outvoted(answers: Sequence[tuple[str | None, ...]]) -> list[str]:
    """A line with the workers that differ from more than half of all."""
    answer, votes = Counter(answers).most_common(1)[0]
    if 2 * votes <= len(answers):
        return []
    odd = [str(worker) for worker, one in enumerate(answers) if one != answer]
    return [f"    All agree but worker {', '.join(odd)}."]
