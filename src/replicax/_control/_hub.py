"""The chief's side of the workers' channel: it collects exchanges, and watches the workers."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast, final

from replicax._control._heartbeat import Ticks
from replicax._control._member import Member, is_double, number_of, process_of, silent
from replicax._control._watchdog import (
    WAITERS_SHOWN,
    Notices,
    Verdict,
    judge,
    listed,
    waiters,
    worker_lost,
)
from replicax._control._worker_table import Phase, WorkerState, WorkerTable, to_json
from replicax._core.interrupts import uninterrupted
from replicax._net import (
    BROKEN,
    STRANGERS,
    Accepted,
    Caller,
    Encoded,
    Forged,
    Listener,
    Message,
    Outbox,
    encode,
    own,
)

if TYPE_CHECKING:
    from replicax._control._heartbeat import Limits
    from replicax._net import Secret

PATIENCE = 10.0  # seconds for the handshake
NOTICE = 30.0  # seconds of waiting after which a notice is printed
_SMALL = 4096  # bytes of a message of a worker that waits: without a secret it may be a stranger
_HANGING_UP = 1.0  # seconds that workers have to leave once they know who is missing
_HEARING_SECONDS = 2.0
_LEAVING_SECONDS = 15.0  # to end work that needs the chief's process, on a busy machine


@final
class Hub:
    """All workers' connections to the chief.

    The chief itself takes part by direct calls, not by a connection: see `take` and `join_chief`.
    """

    def __init__(
        self,
        size: int,
        secret: Secret | None,
        place: str,
        *,
        limits: Limits,
        on_notice: Callable[[str], None],
    ) -> None:
        self._size = size
        self._limits, self._usual_timeout = limits, limits.timeout
        self._on_notice = on_notice
        self._listener = Listener(
            secret,
            place,
            self._serve,
            admit=self._admit,
            patience=PATIENCE,
            strangers=STRANGERS + size,  # all workers may come at once
        )
        self._inbox = Inbox()
        self._ticks = Ticks(limits.beat)
        self._workers = WorkerTable(size, self._ticks)
        self._members: dict[int, Member] = {}  # the workers that are connected, but the chief
        self._lost: dict[int, tuple[str, int]] = {}  # those lost before all were there
        self._sends: dict[int, Callable[[Encoded], None]] = {}  # to each worker, without waiting
        self._confirmed: set[int] = set()  # workers that have confirmed a verdict
        self._changed = threading.Condition()  # notified when the members change
        self._wake = threading.Event()
        self._port = 0
        self._complete = False
        self._closing = self._over = False

    def listen(self, host: str, port: int) -> int:
        self._port = self._listener.listen(host, port).getsockname()[1]
        self._inbox.open()
        self._listener.open()
        return self._port

    def join_chief(self, send: Callable[[Encoded], None], host: str, pid: int) -> str:
        """Connect the chief, wait for the other workers, and start the watchdog.

        Returns which workers are missing, in words; then nothing starts.
        """
        began = time.monotonic()
        while not (missing := self._wait(began)):
            with self._changed:
                members = dict(self._members)
            unheard = silent(members)
            for index, member in unheard.items():
                self._forget(index, member)
            if not unheard and self._begin(send, host, pid):
                threading.Thread(target=self._watch, name="replicax-watchdog", daemon=True).start()
                return ""
        return missing

    def _wait(self, began: float) -> str:
        """Wait for the workers; returns which are missing when the time is over."""
        end = began + self._limits.joining
        with self._changed:
            now = time.monotonic()
            if self._changed.wait_for(self._all_here, min(NOTICE, end - now)):
                return ""
            if time.monotonic() < end:
                missing = listed(self._missing())
                self._on_notice(f"the chief still waits for {missing} at port {self._port}")
            if self._changed.wait_for(self._all_here, end - time.monotonic()):
                return ""
            seconds = time.monotonic() - began
            missing = f"{self._missing_text()} in {seconds:.0f} s at port {self._port}"
            self._closing = True
            for member in self._members.values():
                if member.wire:
                    member.wire.send(encode("missing", {"who": missing}))
            self._changed.wait_for(lambda: not self._members, _HANGING_UP)
        return missing

    def _missing(self) -> list[int]:
        here = {
            index
            for index, member in self._members.items()
            if member.wire and not member.is_doubted
        }
        return [index for index in range(1, self._size) if index not in here]

    def _all_here(self) -> bool:
        return not self._missing()

    def _missing_text(self) -> str:
        missing = self._missing()
        never = [index for index in missing if index not in self._lost]
        lost = [
            f"worker {index} (host {host}, pid {pid}) came and was lost"
            for index, (host, pid) in sorted(self._lost.items())
            if index in missing
        ]
        return ", ".join([*([f"nothing from {listed(never)}"] if never else []), *lost])

    def _begin(self, send: Callable[[Encoded], None], host: str, pid: int) -> bool:
        """Welcome all workers; returns False if one has left since it answered."""
        with self._changed:
            if self._missing():
                return False
            self._sends[0] = send
            self._workers.join(0, host=host, pid=pid)
            for index, member in self._members.items():
                assert member.wire
                member.wire.accept()
                member.has_begun = True
                self._sends[index] = member.wire.send
                self._workers.join(index, host=member.process[0], pid=member.process[1])
            self._complete = True
            who = [[state.host, state.pid] for state in self._workers.states()]
            self._tell_all(encode("welcome", {"workers": who}))
        return True

    def lateness(self) -> list[float]:
        return self._workers.lateness()

    def take(self, index: int, message: Message) -> None:
        """Handle a message of a worker; `_channel.py` and `_heartbeat.py` send them."""
        op, head, buffers, _ = message
        key, is_main = (head.get("name", ""), head.get("number", 0)), bool(head.get("main", False))
        if "at" in head:
            self._workers.set_position(index, *head["at"])
        match op:
            case "give":
                early, main = bool(head.get("early", False)), bool(head.get("main", True))
                value = bytes(buffers[0])
                values = self._workers.give(index, key, value, early=early, main=main)
                if values is not None:
                    self._tell_all(_answer(key, values))
            case "wait":
                self._workers.wait(index, key, main=is_main)
            case "withdraw":
                self._workers.withdraw(index, key)
            case "ask":
                self._workers.ask(index, key, main=is_main)
            case "chief":
                self._workers.answer(key)
                self._tell_all(encode(op, head, buffers), but=0)
            case "beat":
                self._workers.beat(index, head)
            case "left":
                self._end(index, "left", preempted=bool(head.get("preempted")))
            case "altered":
                self._end(index, "altered")
            case "failed":
                self._end(index, "failed", head["error"])
            case "timeout" if index == 0:
                seconds = head["seconds"]
                timeout = self._usual_timeout if seconds is None else seconds
                self._limits = replace(self._limits, timeout=timeout)
            case "heard":
                with self._changed:
                    self._confirmed.add(index)
                    self._changed.notify_all()
            case _:
                pass  # a message of a later version

    def close(self) -> None:
        """Close all connections; after a regular end, once the workers have closed theirs."""
        self._closing = True
        self._wake.set()
        self._listener.shut()
        with self._changed:
            if self._over:
                self._changed.wait_for(lambda: not self._members, _LEAVING_SECONDS)
        self._listener.close()
        self._inbox.close()

    def _admit(self, caller: Caller) -> dict[str, Any]:
        index = number_of(caller, self._size)
        caller.state["member"] = member = Member(process_of(caller))
        while True:
            with self._changed:
                if self._complete:
                    state = self._workers.states()[index]
                    raise is_double(index, (state.host, state.pid), member.process)
                before = self._members.setdefault(index, member)
                before.is_doubted = before is not member
            if before is member:
                return {}
            if silent({index: before}):
                self._forget(index, before)
                continue
            with self._changed:
                before.is_doubted = False
                self._changed.notify_all()
            raise is_double(index, before.process, member.process)

    def _serve(self, accepted: Accepted) -> None:
        sock, session, caller = accepted
        index, member = caller.hello["index"], caller.state["member"]
        wire = Outbox(sock, session, largest=0, largest_head=_SMALL)
        with self._changed:
            if self._members.get(index) is not member:
                return  # it took so long that another one has its place
            wire.start()
            member.connect(wire)
            self._changed.notify_all()
        self._hear(index, member, wire)

    def _hear(self, index: int, member: Member, wire: Outbox) -> None:
        def take(message: Message) -> None:
            if member.has_begun:
                self.take(index, message)
            else:
                member.note_answer()

        try:
            while True:
                self._inbox.serve(wire, take)
                while wire.is_amid:  # a large message, or one of which a part has come
                    take(wire.receive())
        except Forged:
            if member.has_begun:
                self._end(index, "altered")
                wire.drain()  # keep the connection until the verdict is sent
        except BROKEN:
            pass
        finally:  # also after a message that `take` cannot handle
            self._part(index, member)
            wire.close()

    def _forget(self, index: int, member: Member) -> None:
        """Give up a worker that does not answer, unless all have begun with it."""
        with self._changed:
            if not self._complete:
                self._part(index, member)

    def _part(self, index: int, member: Member) -> None:
        """Remove a worker whose connection has ended, or is of no use."""
        with self._changed:
            if self._members.get(index) is not member:
                return
            if not self._complete:
                self._lost[index] = member.process
            elif not self._closing:
                self._end(index, "lost")  # unless it left before
            del self._members[index]
            self._changed.notify_all()
        member.leave()  # a live worker connects again

    def _end(self, index: int, phase: Phase, error: str = "", *, preempted: bool = False) -> None:
        self._workers.end(index, phase, error, preempted=preempted)
        self._wake.set()

    def _watch(self) -> None:
        """Judge the workers at each tick, and at once when a worker ends."""
        notices, last_table, received = Notices(self._limits), 0.0, {0: -1}
        while True:
            self._wake.wait(self._limits.beat)
            self._wake.clear()
            self._ticks.tick()
            if self._closing or self._over:
                return
            with self._changed:
                members = self._members.items()
                counts = {index: member.wire.received for index, member in members if member.wire}
            for index in [0, *(i for i, count in counts.items() if count != received.get(i))]:
                self._workers.mark_alive(index)
            received = counts
            states = self._workers.states()
            if verdict := judge(states, self._limits):
                self._pronounce(verdict, states)
            elif self._workers.all_left():
                self._conclude()
                self._tell_all(encode("done", {}))
            elif self._ticks.now - last_table >= self._limits.beat / 2:
                last_table = self._ticks.now
                waiting = [states[0], *waiters(Verdict("died", (0,)), states)[:WAITERS_SHOWN]]
                self._tell_all(encode("states", {"workers": to_json(waiting, {0})}), but=0)
                for notice in notices.due(states, self._ticks.now):
                    self._on_notice(notice)

    def _conclude(self) -> None:
        """Let workers that are started anew wait for a new chief."""
        self._over = True
        self._listener.shut()

    def _pronounce(self, verdict: Verdict, states: list[WorkerState]) -> None:
        """Send a verdict to all workers; to the chief last, because it hosts the hub.

        JAX's service is in the chief's process, too: it aborts workers that outlive the chief,
        and their messages and exit codes are lost.
        """
        self._conclude()
        lost = worker_lost(verdict, states, self._limits)
        answer = encode("verdict", {"message": str(lost), "workers": lost.workers})
        self._tell_all(answer, but=0)
        stopped = set(lost.workers) if verdict.reason == "silent" else set[int]()
        with self._changed:
            self._changed.wait_for(
                lambda: set(self._members) <= {*lost.workers, *self._confirmed}, _HEARING_SECONDS
            )
            self._changed.wait_for(lambda: set(self._members) <= stopped, self._limits.ending)
        self._sends[0](answer)

    def _tell_all(self, message: Encoded, *, but: int | None = None) -> None:
        with uninterrupted:  # once for all of them
            for index, send in self._sends.items():
                if index != but:
                    send(message)


@final
class Inbox:
    """Reads the small messages of all workers in one thread.

    A thread for each would take three times the CPU: most of it goes to their taking turns.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._bell: socket.socket | None = None  # its end stops the thread
        self._closed = False

    def open(self) -> None:
        self._bell, heard = (own(end) for end in socket.socketpair())
        self._selector.register(heard, selectors.EVENT_READ)
        threading.Thread(
            target=self._read, args=(heard,), name="replicax-inbox", daemon=True
        ).start()

    def close(self) -> None:
        """Stop reading; whoever is served gets an EOFError."""
        if self._bell:
            self._bell.close()

    def serve(self, wire: Outbox, take: Callable[[Message], None]) -> None:
        """Hand over messages until one has come in part. Raises what `receive` and `take` raise."""
        ended: SimpleQueue[BaseException | None] = SimpleQueue()
        with self._lock:
            if self._closed:
                raise EOFError
            self._selector.register(wire, selectors.EVENT_READ, (take, ended))
        if error := ended.get():
            raise error

    def _read(self, heard: socket.socket) -> None:
        with self._selector, heard:
            while not self._closed:
                for key, _ in self._selector.select():
                    if key.fileobj is heard:
                        self._closed = True
                    else:
                        self._take(key)
            with self._lock:  # nobody is added any more
                for key in self._selector.get_map().values():
                    if key.data:
                        key.data[1].put(EOFError())

    def _take(self, key: selectors.SelectorKey) -> None:
        wire, (take, ended), error = cast("Outbox", key.fileobj), key.data, None
        try:
            for message in wire.arrived():
                take(message)
        except BaseException as raised:
            error = raised
        if error or wire.is_amid:
            self._selector.unregister(wire)
            ended.put(error)


def _answer(key: tuple[str, int], values: Sequence[bytes]) -> Encoded:
    """The answer to a complete exchange, which has each of several equal values once."""
    places: dict[bytes, int] = {}
    given_by = [places.setdefault(value, len(places)) for value in values]
    head: dict[str, Any] = {"name": key[0], "number": key[1]}
    if len(places) > 1:
        head["given_by"] = given_by  # the place of each worker's value
    return encode("all", head, [b"[" + b",".join(places) + b"]"])
