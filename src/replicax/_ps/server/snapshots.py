"""Snapshots of a server: taken while it works, and restored when its process restarts.

References to values are taken under the server's lock, in microseconds; a thread writes them and
holds up nobody. Values that have not changed since the last snapshot stay where they are.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._ps.server import server_state
from replicax._ps.server.journal import Journal, records
from replicax._ps.server.server import ParameterServer, is_change
from replicax._ps.server.snapshot_cells import Entry, changed_cell, files_of, read, size_of, written
from replicax._ps.server.snapshot_files import Damaged, OtherFormat, SnapshotFolder

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._ps.server.server_state import CellState, ServerState

logger = logging.getLogger("replicax")

# The messages that are repeated; not `optimizer`, which brings code.
_IN_JOURNALS = {"create", "write", "scatter", "attach", "tune", "table", "table_load"}
_SLACK = 64 << 20  # unneeded bytes on disk that are not worth rewriting everything


class Restored(NamedTuple):
    """What a server was restored from."""

    entries: dict[int, Entry]  # of the manifest, by the cell's number
    files: set[str]  # the data files that it needs
    manifest: str  # its name; empty without one, with all that was changed
    journal: int  # the number of the first that is needed

    @classmethod
    def of(cls, body: dict[str, Any], manifest: str) -> Restored:
        """The sources that a manifest names."""
        entries = {entry["number"]: entry for entry in body["cells"]}
        return cls(entries, files_of(body["cells"]), manifest, body["journal"])


@final
class Snapshots:
    """The snapshots of one server, taken every so many seconds if something has changed.

    `run` names the run of the program; only its own snapshots are restored.
    """

    def __init__(
        self, server: ParameterServer, folder: SnapshotFolder, *, run: str, seconds: float
    ) -> None:
        self._server, self._folder = server, folder
        self._run, self._seconds = run, seconds
        self._taking = threading.Lock()
        self._ended = threading.Event()
        self._journal: Journal | None = None
        self._number = 0
        self._entries: dict[int, Entry] = {}
        self._kept: list[Restored] = []
        self._last: tuple[int, int] | None = None

    def begin(self) -> None:
        """Restore what this run has written, if anything, and take snapshots from now on."""
        found = restored(self._server, self._folder, self._run)
        self._number = self._folder.last_number()
        self._journal = self._next_journal(is_first=found is None)
        if found is None:
            found = Restored({}, set(), "", self._number)
        self._entries, self._kept, self._last = found.entries, [found], self._mark()
        self._server.observers.append(self._note)
        threading.Thread(target=self._go_on, name="replicax-snapshots", daemon=True).start()

    def forget(self) -> None:
        """Note that the server has got another state: the next snapshot is a full one."""
        with self._taking:
            self._entries, self._last = {}, None

    def take(self) -> bool:
        """Take a snapshot now; False if nothing has changed since the last.

        If it cannot be written (OSError), the last one stays valid.
        """
        with self._taking:
            if self._mark() == self._last or self._ended.is_set():
                return False
            journal = self._next_journal()
            with self._server.lock:
                state = server_state.capture(self._server, self._captured)
                mark = self._mark()
                before, self._journal = self._journal, journal
            if before is not None:
                before.close()
            try:
                body = self._write(state)
            except BaseException:
                self._entries = {}  # the changes since then are no longer known
                raise
            finally:
                server_state.release(self._server, state)
            if body is None:
                return False
            self._tidy(body)
            self._last = mark
            return True

    def close(self) -> None:
        """Take no more snapshots, and give up the one in progress."""
        self._ended.set()
        with self._server.lock:
            if self._journal is not None:
                self._journal.close()
        with self._taking:
            pass  # wait for the snapshot in progress

    def _go_on(self) -> None:
        said = ""
        while not self._ended.wait(self._seconds):
            try:
                self.take()
                said = ""
            except Exception as error:
                if repr(error) != said:
                    logger.warning(
                        "Parameter server %d cannot write snapshots to %s; it goes on without: %s",
                        self._server.index,
                        self._folder.path,
                        error,
                        # The system's own message suffices.
                        exc_info=not isinstance(error, OSError),
                    )
                said = repr(error)

    def _mark(self) -> tuple[int, int]:
        return self._server.clock, self._server.changes

    def _note(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        """Note a change of the server, under its lock."""
        if self._journal is None or not is_change(op, head):
            return
        if op == "optimizer":  # its code is not written to files
            op, (head, buffers) = "attach", self._server.attached(head)
        try:
            self._journal.append(op, head, buffers)
        except OSError:
            logger.exception(
                "Parameter server %d cannot write to %s. If it dies before its next snapshot, it "
                "cannot be restored.",
                self._server.index,
                self._journal.path,
            )
            self._journal.close()
            self._journal = None

    def _next_journal(self, *, is_first: bool = False) -> Journal:
        self._number += 1
        journal = Journal(self._folder.path / self._folder.name("journal", self._number))
        journal.append("begin", {"run": self._run, "is_first": is_first})
        return journal

    def _captured(self, number: int, cell: Any) -> CellState:
        return changed_cell(number, cell, self._entries.get(number))

    def _write(self, state: ServerState) -> dict[str, Any] | None:
        """Write a state and return its manifest; None if the server has ended meanwhile."""
        data = self._folder.data(self._number)
        try:
            entries = [
                written(self._server, one, self._entries.get(one.number), data)
                for one in state.cells
            ]
            data.finish()
            if self._ended.is_set():
                data.discard()
                return None
        except BaseException:
            data.discard()
            raise
        state.plans = {}  # workers know them
        body = {
            "run": self._run,
            "journal": self._number,
            "cells": entries,
            "state": server_state.described(state),
        }
        self._folder.publish(self._number, body)
        return body

    def _tidy(self, body: dict[str, Any]) -> None:
        """Remove files that the last two snapshots do not need."""
        new = Restored.of(body, self._folder.name("manifest", self._number))
        self._kept = [self._kept[-1], new]
        garbage = self._folder.size(new.files) - 2 * size_of(body["cells"])
        self._entries = new.entries if garbage <= _SLACK else {}  # then all goes to one file
        self._folder.remove_unused(
            set().union(*(kept.files for kept in self._kept)),
            {kept.manifest for kept in self._kept},
            self._kept[0].journal,
        )


def restored(server: ParameterServer, folder: SnapshotFolder, run: str) -> Restored | None:
    """Restore the last complete snapshot of a run and the coordinator's later changes.

    Returns the sources; None if there was nothing.
    """
    manifests, journals = folder.found("manifest"), folder.found("journal")
    for _, path in reversed(manifests):
        try:
            body = folder.body(path)
            if body["run"] != run:
                continue
            cells = [(entry["number"], read(folder, entry, server.code)) for entry in body["cells"]]
        except Damaged as error:
            logger.warning("A snapshot of parameter server %d: %s", server.index, error)
            continue
        server_state.install(server, body["state"], cells)
        _replay(server, [path for number, path in journals if number >= body["journal"]])
        return Restored.of(body, path.name)
    first = max((number for number, path in journals if _is_first(path, run)), default=None)
    if first is not None:
        _replay(server, [path for number, path in journals if number >= first])
        return Restored({}, set(), "", first)
    if manifests:
        logger.warning(
            "There is no whole snapshot of parameter server %d in %s, which begins with nothing.",
            server.index,
            folder.path,
        )
    return None


def _is_first(path: Path, run: str) -> bool:
    for record in records(path):
        return record.head["is_first"] and record.head["run"] == run
    return False


def _replay(server: ParameterServer, journals: Sequence[Path]) -> None:
    for path in journals:
        for record in records(path):
            if record.op not in _IN_JOURNALS | {"begin"}:
                raise OtherFormat(path, record.op)
            if record.op != "begin":
                server.handle(None, record)
