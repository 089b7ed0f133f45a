"""A parameter server: cells and optimizers, and the few requests about them.

The hot one is `exchange`: a worker pushes the results of a closure and gets the values for its next
one, in one round trip. A plan agreed on before says what is pushed and pulled, so a message holds
only numbers. README.md tells the life of a closure.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from replicax._core.errors import ClusterError
from replicax._ps.buffers import array_of, numbers_of, raw
from replicax._ps.server.applied import Applied
from replicax._ps.server.cell_requests import CellRequests
from replicax._ps.server.code import Code
from replicax._ps.server.hosted import Hosted, OtherOptimizer, prepare, step, step_rows
from replicax._ps.store.scaling import scaling
from replicax._ps.tables.table_requests import TableRequests

Reply = tuple[dict[str, Any], Sequence[Any]]

MOST_AHEAD = 64 << 20  # bytes: compiling larger updates ahead would take too much memory
_CHANGES = {"create", "write", "scatter", "optimizer", "attach", "table", "table_load"}


def is_change(op: str, head: dict[str, Any]) -> bool:
    """Whether the coordinator's message is a change, which must be neither lost nor repeated.

    Workers' pushes are changes, too, but a closure can be run again.
    """
    return op in _CHANGES or (op == "tune" and bool(head["set"]))


class UnknownPlan(ClusterError):
    """Raised for a worker's plan that this server, perhaps restarted, does not have."""


@final
class ParameterServer:
    """The state of one server, and a handler of messages that change it.

    Of the settings it uses the `staleness_scaling`, and the `code` of a run that goes on.
    """

    def __init__(self, index: int, settings: dict[str, Any]) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.code = Code(settings.get("code", ()))
        self.cells: dict[int, Any] = {}  # each a `Cell` or a `DynamicCell`
        self.optimizers: dict[int, Hosted] = {}
        self.applied = Applied()
        self.clock = 0
        self.staleness: Counter[int] = Counter()
        # The coordinator's changes: their number, and the ids of the requests.
        self.changes = 0
        self.requests = Applied()
        self.plans: dict[str, dict[str, Any]] = {}
        # Called under the lock with every change, in order: op, head, buffers.
        self.observers: list[Callable[[str, dict[str, Any], Sequence[Any]], None]] = []
        self._scale = scaling(settings.get("staleness_scaling"))
        self._about_cells = CellRequests(self)
        self._handlers: dict[str, Callable[[Any, Any], Reply]] = {
            "plan": self._plan,
            "exchange": self._exchange,
            "push": self._pushed,
            "stats": self._stats,
            **self._about_cells.handlers,
            **TableRequests(self).handlers,
        }

    def handle(self, caller: Any, message: Any) -> Reply:
        """Answer one message."""
        if is_change(message.op, message.head):
            return self._change(message)
        return self._handlers[message.op](caller, message)

    def attached(self, head: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
        """The result of an `optimizer` message: see `CellRequests`."""
        return self._about_cells.attached(head)

    def _change(self, message: Any) -> Reply:
        """Apply a change of the coordinator once, even if it asks again after a failure."""
        request = message.head.get("request")
        with self.lock:
            if request is not None and request in self.requests:
                return (
                    self._about_cells.tuned(message.head["id"])
                    if message.op == "tune"
                    else ({}, ())
                )
            reply = self._handlers[message.op](None, message)
            self.changes += 1
            if request is not None:
                self.requests.add(request)
            self._tell(message.op, message.head, message.buffers)
        return reply

    def _tell(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        for observer in self.observers:
            observer(op, head, buffers)

    def _plan(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            if self.plans.get(message.head["id"]) != message.head:
                self.plans[message.head["id"]] = message.head
                self._tell(message.op, message.head, ())
                self._prepare(message.head["pushes"])
        return {}, ()

    def _prepare(self, pushes: Sequence[dict[str, Any]]) -> None:
        """Compile updates while the worker compiles what it will push."""
        for push in pushes:
            cells = [self.cells[number] for number in push["cells"] if number in self.cells]
            hosted = self.optimizers.get(push["optimizer"])
            if hosted is not None and 0 < sum(cell.value.nbytes for cell in cells) <= MOST_AHEAD:
                # No daemon thread: the interpreter must not end during a compilation.
                threading.Thread(target=prepare, args=(hosted, cells)).start()

    def _exchange(self, caller: Any, message: Any) -> Reply:
        head = message.head
        plan = self.plans.get(head["plan"])
        if plan is None:
            raise UnknownPlan(head["plan"])
        with self.lock:
            if head["push"] and head["closure"] not in self.applied:
                late = self._late(plan, caller.state.get(head["plan"]))
                self._push(plan, head["closure"], late, message.buffers)
            given = iter(message.buffers[len(message.buffers) - len(plan["tables"]) :])
            values: list[Any] = []
            if head["pull"]:
                values = [self._current(cell, slot) for cell, slot in plan["reads"]]
                values += [
                    self.cells[cell].rows(numbers_of(next(given)), training=cell in plan["pushed"])
                    for cell in plan["tables"]
                ]
                caller.state[head["plan"]] = {
                    cell: self.cells[cell].version for cell in plan["pushed"]
                }
            clock = self.clock
        return {"clock": clock}, [raw(value) for value in values]

    def _current(self, cell: Any, slot: int | None) -> Any:
        if isinstance(cell, list):  # what an optimizer has once for all cells
            optimizer, name, dtype = cell
            return np.asarray(getattr(self.optimizers[optimizer], name), dtype)
        return self.cells[cell].get(slot)

    def _late(self, plan: Any, seen: Any) -> int | None:
        """The number of updates since the values of a push were pulled."""
        if not plan["pushed"] or seen is None:
            return None
        return max(self.cells[cell].version - seen[cell] for cell in plan["pushed"])

    def _pushed(self, caller: Any, message: Any) -> Reply:
        """Apply a push to another server, whose replica this is."""
        head = message.head
        with self.lock:
            self._push(self.plans[head["plan"]], head["closure"], head["late"], message.buffers)
        return {}, ()

    def _push(self, plan: Any, closure: int, late: int | None, buffers: Sequence[Any]) -> None:
        scale = 1.0
        if late is not None:
            self.staleness[late] += 1
            scale = self._scale(late)
        self._apply(plan, buffers, scale)
        self.applied.add(closure)
        self.clock += 1
        if self.observers:
            self._tell("push", {"plan": plan["id"], "closure": closure, "late": late}, buffers)

    def _apply(self, plan: Any, buffers: Sequence[Any], scale: float) -> None:
        given = iter(buffers)
        for push in plan["pushes"]:
            hosted = self.optimizers[push["optimizer"]]
            cells = [self.cells[number] for number in push["cells"]]
            for cell in cells + [self.cells[number] for number in push["tables"]]:
                if cell.optimizer != push["optimizer"]:
                    raise OtherOptimizer(cell.part.path)
            grads = [array_of(next(given), cell.part.dtype, cell.part.shape) for cell in cells]
            step(hosted, cells, grads, scale)
            for number in push["tables"]:
                rows = numbers_of(next(given))
                step_rows(hosted, self.cells[number], rows, next(given), scale)
            hosted.iterations += 1
        for number, slot, kind in plan["writes"]:
            cell = self.cells[number]
            now = cell.get(slot)
            cell.put(array_of(next(given), now.dtype, now.shape), kind, slot)

    def _stats(self, caller: Any, message: Any) -> Reply:
        with self.lock:
            versions = {str(number): cell.version for number, cell in self.cells.items()}
            late = {str(updates): count for updates, count in self.staleness.items()}
            return {"clock": self.clock, "versions": versions, "staleness": late}, ()
