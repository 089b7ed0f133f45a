"""The result of a verification, as data; `_render.py` makes text and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from replicax._core.errors import ResultsDiffer
from replicax._tools.verify import _render

if TYPE_CHECKING:
    from replicax._tools.verify._compare import Difference
    from replicax._tools.verify._evidence import Cause


@final
@dataclass(frozen=True)
class Comparison:
    """A run of the program, compared with that on one device.

    Args:
        strategy: The strategy; that of the second run on one device is `one_device again`.
        replicas: How many replicas it has.
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
        >>> from replicax._tools.verify._result import Verification
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
        return _render.to_text(self)

    def to_json(self) -> str:
        """Everything that was found."""
        return _render.to_json(self)

    def check(self) -> None:
        """Raise an error if a strategy does not train as one device does.

        Raises:
            ResultsDiffer: If one differs.
        """
        if not self.is_equal:
            raise ResultsDiffer(
                f"{self.name} does not train as one device does. "
                f"{' '.join(_render.sentences(self))} See docs/tools.md."
            )
