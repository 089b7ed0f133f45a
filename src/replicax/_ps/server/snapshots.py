"""Snapshots of a server: taken while it works, and restored when its process restarts.

References to values are taken under the server's lock, in microseconds; a thread writes them and
holds up nobody. Of values that have not changed since the last snapshot it links the files.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._ps.server import server_state
from replicax._ps.server.server import ParameterServer, is_change
from replicax._ps.server.snapshot_files import (
    Damaged,
    Entry,
    Journal,
    OtherFormat,
    SnapshotFolder,
    keep_cell,
    read_cell,
    read_state,
    records,
    write_cell,
    write_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._ps.server.server_state import CellState, ServerState

logger = logging.getLogger("replicax")

_SHARE = 10  # A tenth of the time at most is spent on writing: of large tables it is rarer.


class Taken(NamedTuple):
    """A snapshot, or what a server begins with in its place."""

    place: Path | None  # None without one, with all that was changed
    entries: dict[int, Entry]  # by the cell's number
    journal: int  # the number of the first that is needed

    @classmethod
    def of(cls, place: Path, body: dict[str, Any]) -> Taken:
        """The snapshot at a place."""
        return cls(place, {entry["number"]: entry for entry in body["cells"]}, body["journal"])


@final
class Snapshots:
    """The snapshots of one server, taken at an interval in seconds if something has changed.

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
        self._kept: list[Taken] = []
        self._last: tuple[int, int] | None = None

    def begin(self) -> None:
        """Restore what this run has written, if anything, and take snapshots from now on."""
        found = restored(self._server, self._folder, self._run)
        self._number = self._folder.last_number()
        self._journal = self._next_journal(is_first=found is None)
        if found is None:
            found = Taken(None, {}, self._number)
        self._kept, self._last = [found], self._mark()
        self._server.observers.append(self._note)
        threading.Thread(target=self._go_on, name="replicax-snapshots", daemon=True).start()

    def forget(self) -> None:
        """Note that the server has got another state: the next snapshot is a full one."""
        with self._taking:
            self._kept[-1] = self._kept[-1]._replace(entries={})  # equal stamps mean nothing
            self._last = None

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
                taken = self._write(state)
            finally:
                server_state.release(self._server, state)
            if taken is None:
                return False
            self._kept, self._last = [self._kept[-1], taken], mark
            places = {one.place for one in self._kept if one.place is not None}
            self._folder.tidy(places, self._kept[0].journal)
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
        reported, took = "", 0.0
        while not self._ended.wait(max(self._seconds, _SHARE * took)):
            begin = time.monotonic()
            try:
                self.take()
                reported = ""
            except Exception as error:
                if repr(error) != reported:
                    logger.warning(
                        "Parameter server %d cannot write snapshots to %s; it goes on without: %s",
                        self._server.index,
                        self._folder.path,
                        error,
                        # The system's own message suffices.
                        exc_info=not isinstance(error, OSError),
                    )
                reported = repr(error)
            took = time.monotonic() - begin

    def _mark(self) -> tuple[int, int]:
        return self._server.clock, self._server.changes

    def _note(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        """Note a change of the server, under its lock."""
        if self._journal is None or not is_change(op, head):
            return
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
        journal = Journal(self._folder.at("journal", self._number))
        journal.append("begin", {"run": self._run, "is_first": is_first})
        return journal

    def _captured(self, number: int, cell: Any) -> CellState:
        before = self._kept[-1].entries.get(number)
        bare = server_state.bare_cell(number, cell)
        unchanged = before is not None and tuple(before["stamp"]) == bare.stamp
        return bare if unchanged else server_state.whole_cell(number, cell)

    def _write(self, state: ServerState) -> Taken | None:
        """Write a state; None if the server has ended meanwhile."""
        last, new = self._kept[-1], self._folder.new(self._number)
        try:
            entries = []
            for one in state.cells:
                if one.is_whole:
                    entries.append(write_cell(self._server, one, new.path))
                else:
                    assert last.place is not None
                    keep_cell(new.path, last.place, one.number)
                    entries.append(last.entries[one.number])
            state.about["plans"] = []  # workers know them
            body = {
                "run": self._run,
                "journal": self._number,
                "cells": entries,
                "state": server_state.described(state),
            }
            write_state(new.path, body)
            if self._ended.is_set():
                return None
            new.finish()
        finally:
            new.discard()
        return Taken.of(new.target, body)


def restored(server: ParameterServer, folder: SnapshotFolder, run: str) -> Taken | None:
    """Restore the last complete snapshot of a run and the coordinator's later changes.

    Returns what was restored; None if there was nothing.
    """
    snapshots, journals = folder.found("snapshot"), folder.found("journal")
    for _, place in reversed(snapshots):
        try:
            body = read_state(place)
            if body["run"] != run:
                continue
            cells = [
                (entry["number"], read_cell(place, entry, server.code)) for entry in body["cells"]
            ]
        except Damaged as error:
            logger.warning("A snapshot of parameter server %d: %s", server.index, error)
            continue
        server_state.install(server, body["state"], cells)
        _replay(server, [path for number, path in journals if number >= body["journal"]])
        return Taken.of(place, body)
    first = max((number for number, path in journals if _is_first(path, run)), default=None)
    if first is not None:
        _replay(server, [path for number, path in journals if number >= first])
        return Taken(None, {}, first)
    if snapshots:
        logger.warning(
            "There is no whole snapshot of parameter server %d in %s: it begins with nothing.",
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
            if record.op == "begin":
                continue
            if not is_change(record.op, record.head):
                raise OtherFormat(path, record.op)
            server.handle(None, record)
