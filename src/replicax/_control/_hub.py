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
from replicax._control._meeting import is_double, number_of, process_of
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
from replicax._core.env import RX_SECOND_PORT
from replicax._net import (
    BROKEN,
    Accepted,
    Caller,
    Encoded,
    Forged,
    Listener,
    Message,
    Outbox,
    Secret,
    encode,
    own,
)

if TYPE_CHECKING:
    from replicax._control._heartbeat import Limits

HUB = "the hub of the workers"  # its place in the cluster
_HEARING_SECONDS = 2.0
_BACK = 5.0  # seconds in which a live worker reconnects after its connection broke
_LOOK = 0.1
_LEAVING_SECONDS = 15.0  # to end what needs the chief's process, on a busy machine


@final
class Hub:
    """All workers' connections to the chief.

    The chief itself takes part by direct calls, not by a connection: see `take` and `join_chief`.
    """

    def __init__(
        self, size: int, secret: Secret, *, limits: Limits, on_notice: Callable[[str], None]
    ) -> None:
        self._size = size
        self._limits, self._usual_timeout = limits, limits.timeout
        self._on_notice = on_notice
        self._listener = Listener(secret, HUB, self._serve, admit=self._admit)
        self._inbox = Inbox()
        self._ticks = Ticks(limits.beat)
        self._workers = WorkerTable(size, self._ticks)
        self._lock = threading.Lock()
        self._sends: dict[int, Callable[[Encoded], None]] = {}  # to each worker, without waiting
        self._wires: dict[int, Outbox] = {}
        self._processes: dict[int, tuple[str, int]] = {}  # host and pid of each worker
        self._confirmed: set[int] = set()  # workers that have confirmed a verdict
        self._open = threading.Condition(self._lock)  # notified when the open wires change
        self._wake = threading.Event()
        self._port = 0
        self._lost: dict[int, float] = {}  # when workers count as lost, unless they reconnect
        self._complete = False
        self._closing = self._over = False

    def listen(self, host: str, port: int) -> int:
        """Listen on an interface; returns the port."""
        self._port = self._listener.listen(host, port).getsockname()[1]
        self._inbox.open()
        self._listener.open()
        return self._port

    def join_chief(self, send: Callable[[Encoded], None], host: str, pid: int) -> str:
        """Connect the chief, wait for the other workers, and start the watchdog.

        Returns which workers are missing, in words; then nothing starts.
        """
        deadline = time.monotonic() + self._limits.connecting
        with self._open:
            self._add(0, send, host=host, pid=pid)
            while not (self._complete or self._lost_ones() or time.monotonic() > deadline):
                self._open.wait(_LOOK)
            if not self._complete:
                self._closing = True
                missing = [each for each in range(self._size) if each not in self._sends]
                absence = _absence(self._lost_ones(), missing, self._port)
                for wire in self._wires.values():
                    wire.send(encode("missing", {"who": absence}))
                return absence
        threading.Thread(target=self._watch, name="replicax-watchdog", daemon=True).start()
        return ""

    def lose(self, index: int) -> None:
        """Note that a worker has left the meeting before all were connected."""
        with self._open:
            self._lost[index] = time.monotonic()

    def lateness(self) -> list[float]:
        """The seconds that the others have waited for each worker."""
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
                with self._open:
                    self._confirmed.add(index)
                    self._open.notify_all()
            case _:
                pass  # a message of a later version

    def close(self) -> None:
        """Close all connections; after a regular end, once the workers have closed theirs."""
        self._closing = True
        self._wake.set()
        self._listener.shut()
        with self._open:
            if self._over:
                self._open.wait_for(lambda: not self._wires, _LEAVING_SECONDS)
        self._listener.close()
        self._inbox.close()

    def _admit(self, caller: Caller) -> dict[str, Any]:
        index, process = number_of(caller, self._size), process_of(caller)
        with self._lock:
            there = self._processes.get(index, process)
            is_taken = index in self._wires and there != process  # the same process may reconnect
            if self._complete or is_taken:
                raise is_double(index, there, process)
        return {}

    def _serve(self, accepted: Accepted) -> None:
        """Handle the messages of a worker until it hangs up."""
        sock, session, caller = accepted
        index, wire = caller.hello["index"], Outbox(sock, session)
        wire.start()
        with self._open:
            if not self._complete and not self._closing:
                before, self._wires[index] = self._wires.get(index), wire
                self._processes[index] = host, pid = process_of(caller)
                self._lost.pop(index, None)
                self._add(index, wire.send, host=host, pid=pid)
                if before:
                    before.hang_up()
        self._hear(index, wire)

    def _add(self, index: int, send: Callable[[Encoded], None], *, host: str, pid: int) -> None:
        self._sends[index] = send
        self._workers.join(index, host=host, pid=pid)
        if len(self._sends) == self._size:  # workers start when all are connected
            who = [[state.host, state.pid] for state in self._workers.states()]
            self._tell_all(encode("welcome", {"workers": who}))
            self._complete = True
            self._open.notify_all()

    def _hear(self, index: int, wire: Outbox) -> None:
        try:
            while True:
                self._inbox.serve(wire, lambda message: self.take(index, message))
                while wire.is_amid:  # a large message, or one of which a part has come
                    self.take(index, wire.receive())
        except Forged:
            self._end(index, "altered")
            wire.drain()  # keep the connection until the verdict is sent
        except BROKEN:
            pass
        finally:  # also after a message that `take` cannot handle
            self._part(index, wire)
            wire.close()

    def _part(self, index: int, wire: Outbox) -> None:
        """Remove a wire that has ended."""
        with self._open:
            if self._wires.get(index) is not wire:
                return
            if not self._complete:
                del self._sends[index]
                self._lost.setdefault(index, time.monotonic() + _BACK)
            elif not self._closing:
                self._end(index, "lost")  # unless it left before
            del self._wires[index]
            self._open.notify_all()

    def _lost_ones(self) -> list[int]:
        now, lost = time.monotonic(), sorted(self._lost.items())
        return [index for index, since in lost if since <= now and index not in self._wires]

    def _end(self, index: int, phase: Phase, error: str = "", *, preempted: bool = False) -> None:
        """Note that a worker has ended, and wake the watchdog."""
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
            with self._lock:
                counts = {index: wire.received for index, wire in self._wires.items()}
            for index in [0, *(i for i, count in counts.items() if count != received.get(i))]:
                self._workers.mark_alive(index)
            received = counts
            states = self._workers.states()
            if verdict := judge(states, self._limits):
                self._pronounce(verdict, states)
            elif self._workers.all_left():
                self._over = True
                self._tell_all(encode("done", {}))
            elif self._ticks.now - last_table >= self._limits.beat / 2:
                last_table = self._ticks.now
                told = [states[0], *waiters(Verdict("died", (0,)), states)[:WAITERS_SHOWN]]
                self._tell_all(encode("states", {"workers": to_json(told, {0})}), but=0)
                for notice in notices.due(states, self._ticks.now):
                    self._on_notice(notice)

    def _pronounce(self, verdict: Verdict, states: list[WorkerState]) -> None:
        """Send a verdict to all workers; to the chief last, because it hosts the hub.

        JAX's service is in the chief's process, too: it aborts workers that outlive the chief,
        and their messages and exit codes are lost.
        """
        self._over = True
        lost = worker_lost(verdict, states, self._limits)
        answer = encode("verdict", {"message": str(lost), "workers": lost.workers})
        self._tell_all(answer, but=0)
        stopped = set(lost.workers) if verdict.reason == "silent" else set[int]()
        with self._open:
            self._open.wait_for(
                lambda: set(self._wires) <= {*lost.workers, *self._confirmed}, _HEARING_SECONDS
            )
            self._open.wait_for(lambda: set(self._wires) <= stopped, self._limits.ending)
        self._sends[0](answer)

    def _tell_all(self, message: Encoded, *, but: int | None = None) -> None:
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
        """Start to read."""
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
    """The answer to a complete exchange: each value once, so that of equal ones there is one."""
    places: dict[bytes, int] = {}
    given_by = [places.setdefault(value, len(places)) for value in values]
    head: dict[str, Any] = {"name": key[0], "number": key[1]}
    if len(places) > 1:
        head["given_by"] = given_by  # the place of each worker's value
    return encode("all", head, [b"[" + b",".join(places) + b"]"])


def _absence(lost: list[int], missing: list[int], port: int) -> str:
    """Which workers are missing, in words."""
    if lost:
        return f"{listed(lost)} met the others, and then died before all were connected"
    return (
        f"{listed(missing)} met the others, and then did not connect to the chief's second port, "
        f"{port} ({RX_SECOND_PORT} can set another one)"
    )
