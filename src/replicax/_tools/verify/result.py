"""The result of a verification, as data, text and JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, final

from replicax._core.errors import ResultsDiffer
from replicax._tools.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from replicax._tools.verify.causes import Cause
    from replicax._tools.verify.compare import Difference


@final
@dataclass(frozen=True)
class Comparison:
    """A run of the program, compared with the run on one device.

    Args:
        strategy: The strategy; `one_device again` for the second run on one device.
        replicas: The number of its replicas.
        steps: How many steps were compared.
        compared: How many values: of variables, gradients, results.
        differences: Those of the first step that has any, nearest to the cause first.
        cause: The likely cause, if there are any.
        told: How many replicas the one device was told of, where the batch grows with them.
    """

    strategy: str
    replicas: int
    steps: int
    compared: int
    differences: tuple[Difference, ...] = ()
    cause: Cause | None = None
    told: int | None = None

    @property
    def is_equal(self) -> bool:
        """Whether it is as on one device."""
        return self.cause is None


@final
@dataclass(frozen=True)
class Verification:
    """What `rx.verify` has found.

    Args:
        name: What was verified.
        rows: One for each run beside the first.

    Example:
        >>> from replicax._tools.verify.result import Verification
        >>> Verification("train.py", ()).is_equal
        True
    """

    name: str
    rows: tuple[Comparison, ...]

    @property
    def is_equal(self) -> bool:
        """Whether every strategy trains as one device does."""
        return all(row.is_equal for row in self.rows)

    def table(self) -> str:
        """A table and what it means, for a terminal."""
        table = aligned(_HEADERS, list(map(_cells, self.rows)), left=_WORDS)
        title = f"{self.name}: each step compared with the same step on one device"
        return "\n\n".join([title, table, *map(wrapped, [*self._grown(), *self._sentences()])])

    def to_json(self) -> str:
        """Everything that was found."""
        rows = [{**asdict(row), "is_equal": row.is_equal} for row in self.rows]
        return as_json({"name": self.name, "is_equal": self.is_equal, "rows": rows})

    def _sentences(self) -> list[str]:
        """What differs and why, a line for each strategy; or that nothing does."""
        lines = [_sentence(row) for row in self.rows if not row.is_equal]
        return lines or ["equal: loss, metrics, gradients, weights, statistics and random states."]

    def _grown(self) -> list[str]:
        names = [row.strategy for row in self.rows if row.told]
        if not names:
            return []
        told = "so that one device was told that there are as many"
        return [f"{', '.join(names)}: the batch grows with the number of replicas, {told}."]

    def check(self) -> None:
        """Raise an error if a strategy does not train as one device does.

        Raises:
            ResultsDiffer: If one differs.
        """
        if not self.is_equal:
            raise ResultsDiffer(
                f"{self.name} does not train as one device does. "
                f"{' '.join(self._sentences())} See docs/tools.md."
            )


_HEADERS = (
    "strategy",
    "result",
    "first difference",
    "likely cause",
    "replicas",
    "steps",
    "values\ncompared",
    "how\nmuch",
)
_WORDS = 4  # the first columns hold words


def _cells(row: Comparison) -> list[str]:
    first = row.differences[0] if row.differences else None
    return [
        row.strategy,
        "equal" if row.is_equal else "DIFFERS",
        _where(first) if first else "",
        row.cause.name if row.cause else "",
        str(row.replicas),
        str(row.steps),
        str(row.compared),
        f"{first.size:.2g}" if first else "",
    ]


def _where(one: Difference) -> str:
    when = f"step {one.step}" if one.step else "start"
    return f"{when}: {one.kind} {one.name}" if one.kind != "steps" else f"{when}: {one.name}"


def _sentence(row: Comparison) -> str:
    assert row.cause is not None
    found = row.differences
    more = f", and {len(found) - 1} more of this step" if len(found) > 1 else ""
    where = f"{_where(found[0])}{more}. " if found else ""
    text = row.cause.text
    return f"{row.strategy}: {where}Likely cause: {row.cause.name}. {text[:1].upper()}{text[1:]}"
