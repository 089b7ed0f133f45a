"""What a tape sees of variables: which are read in its block, and as which values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import TapeMisuse
from replicax._keras import _compat
from replicax._tape.derivative import is_differentiable

if TYPE_CHECKING:
    from replicax._tape.recording_trace import RecordingTrace
    from replicax._tape.wengert import WengertList


@final
class TapeVariables:
    """The variables that a tape watches, and the values that stand for them on its list.

    Each read gives a copy of the variable's value, which stands for this variable and nothing
    else: two variables may hold one array. In compiled code a copy costs nothing.

    Args:
        log: The tape's list.
        accessed: Whether trainable variables are watched when they are read.
    """

    def __init__(self, log: WengertList, *, accessed: bool) -> None:
        self.watched: dict[int, Any] = {}
        self._log = log
        self._accessed = accessed
        self._shown: dict[int, list[tuple[Any, Any]]] = {}

    def begin(self, trace: RecordingTrace) -> None:
        """The tape's block is entered."""
        self._trace = trace
        self._scope = _compat.get_stateless_scope()

    def clear(self) -> None:
        """Forget what was watched and read."""
        self.watched.clear()
        self._shown.clear()

    def watch(self, variable: Any) -> None:
        """Watch a variable, trainable or not."""
        self.watched[id(variable)] = variable

    def values_of(self, variable: Any) -> list[Any]:
        """The values that stand for a variable: one, and one more for each assignment."""
        return [shown for _, shown in self._shown.get(id(variable), [])]

    def hear(self, variable: Any, value: Any) -> Any:
        """A variable is read: what the tape lets the reader see."""
        if not self._log.recording or not self._is_read_here(variable):
            return value
        if self._accessed and variable.trainable:
            self.watch(variable)
        if id(variable) not in self.watched or not is_differentiable(value):
            # What was assigned is a value like any other from now on: no gradient flows through.
            return self._trace.fresh(value) if value in self._log else value
        return self.show(variable, value)

    def stand_in(self, variable: Any, value: Any) -> Any:
        """The value that stands for a variable with this value."""
        shown_for = self._shown.setdefault(id(variable), [])
        shown = next((shown for known, shown in shown_for if known is value), None)
        if shown is None:
            shown = self._trace.fresh(value)
            self._log.watch(shown)
            shown_for.append((value, shown))
        return shown

    def show(self, variable: Any, value: Any) -> Any:
        """The value that stands for a variable that is read in the block."""
        shown = self.stand_in(variable, value)
        if self._trace.is_eager and not self._trace.sees(shown):
            raise TapeMisuse(
                "A tape outside compiled code sees what is computed at once. Received: variable "
                f"'{variable.path}', read while JAX compiles a part of the block: a `jax.jit`, a "
                "scan, a loop, or a recurrent layer. There the variable is a constant, and its "
                "gradient would be missing. Put the whole step into an `rx.function`."
            )
        return shown

    def _is_read_here(self, variable: Any) -> bool:
        """Whether a read sees the variable as it is at the tape's block, and not one lent."""
        scope: Any = _compat.get_stateless_scope()
        while scope is not None and scope is not self._scope:
            # Where shapes are computed, or it is found out what a function reads, no value counts.
            finds = getattr(scope, "finds", _compat.in_symbolic_scope())
            if finds or id(variable) in scope.state_mapping:
                return False
            scope = scope.original_scope
        return scope is self._scope
