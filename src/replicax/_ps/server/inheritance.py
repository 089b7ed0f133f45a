"""What servers of an earlier run of a program have left, for the variables of this one.

The program makes its variables again. Those that the earlier run had, with the same path and shape,
begin with its values and slots instead of initial ones.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from replicax._ps.buffers import raw
from replicax._ps.server.journal import records
from replicax._ps.server.snapshot_files import Damaged, OtherFormat, SnapshotFolder
from replicax._ps.server.snapshots import restored
from replicax._ps.wire import Message

if TYPE_CHECKING:
    from replicax._ps.server.cells import Cell
    from replicax._ps.server.code import Code
    from replicax._ps.server.server import ParameterServer

logger = logging.getLogger("replicax")


@final
class Inheritance:
    """The state that a server of an earlier run had.

    Args:
        server: That server, restored.
        code: What the server of this run has been sent.
    """

    def __init__(self, server: ParameterServer, code: Code) -> None:
        self._server, self._code = server, code
        self._cells: dict[tuple[Any, ...], list[Cell]] = {}
        for _, cell in sorted(server.cells.items()):  # the shards of a variable, in their order
            self._cells.setdefault(_key(cell.part.path, cell.part.shape), []).append(cell)
        self._taken: dict[int, Cell] = {}

    @classmethod
    def of(
        cls,
        folder: SnapshotFolder,
        run: str,
        server: ParameterServer,
        code: Code,
        *,
        is_wanted: bool,
    ) -> Inheritance | None:
        """What another run has left in a folder, which is then given to this one.

        Args:
            folder: The folder.
            run: Names this run.
            server: An empty server, to be restored.
            code: What the server of this run has been sent.
            is_wanted: Whether this run begins with it.

        Raises:
            OtherFormat: If it is wanted, and another version of Replicax has left it.
        """
        if not _is_of_others(folder, run):
            return None
        if is_wanted:
            restored(server, folder, None)
        aside = folder.set_aside()
        logger.info("What an earlier run has left in %s is now %s.", folder.path, aside)
        return cls(server, code) if server.changes else None

    def applied_to(self, message: Any) -> Any:
        """A message of the coordinator, with what is inherited in place of what is initial."""
        change = {"create": self._create, "optimizer": self._optimizer}.get(message.op)
        return message if change is None else change(message)

    def _create(self, message: Any) -> Any:
        head = message.head
        found = self._cells.get(_key(head["path"], head["shape"]))
        if not found or found[0].part.dtype != head["dtype"]:
            logger.warning(
                "The variable '%s' begins anew: the run before this one had none of this path, "
                "shape and type.",
                head["path"],
            )
            return message
        cell = self._taken[head["cell"]] = found.pop(0)
        buffers: Any = [raw(cell.value), *message.buffers[1:]]
        return Message(message.op, head, buffers)

    def _optimizer(self, message: Any) -> Any:
        head, buffers = dict(message.head), list(message.buffers)
        hosted = self._server.optimizers.get(head["id"])
        if hosted is None:
            return message
        if "iterations" in head:  # it is made; what follows are cells for it
            if self._code.add(buffers[0]).name != hosted.kind:
                logger.warning("The run before this one had another optimizer; it begins anew.")
                del self._server.optimizers[head["id"]]
                return message
            head["iterations"], head["learning_rate"] = hosted.iterations, hosted.learning_rate
        constraint = [buffers.pop()] if head["constrained"] else []
        given, cells = iter(buffers[1:]), []
        slots: list[Any] = []
        for number, count, decays in head["cells"]:
            own = [next(given) for _ in range(count)]
            inherited = self._taken.get(number)
            if inherited is not None and inherited.optimizer == head["id"]:
                own = [raw(slot) for slot in inherited.slots]
            cells.append([number, len(own), decays])
            slots += own
        return Message(message.op, {**head, "cells": cells}, [*buffers[:1], *slots, *constraint])


def _key(path: str, shape: Any) -> tuple[Any, ...]:
    return path, tuple(shape)


def _is_of_others(folder: SnapshotFolder, run: str) -> bool:
    """Whether there is something, and it is not of this run."""
    for _, path in folder.found("manifest"):
        try:
            return folder.body(path)["run"] != run
        except OtherFormat:
            return True
        except Damaged:
            continue
    for _, path in folder.found("journal"):
        for record in records(path):
            return record.head["run"] != run
    return False
