"""The coordinator's end of a connection to a worker, on which one closure runs at a time."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._net import ConnectionLost, Refused, RequestClient, array_of, raw
from replicax._ps.queue.lanes import ComesLater, ServerGone, WorkerGone
from replicax._ps.queue.tasks import assembled

if TYPE_CHECKING:
    from replicax._ps.hosts.cluster import Member
    from replicax._ps.programs import Program
    from replicax._ps.queue.closures import Closure
    from replicax._ps.queue.coordination import Engine
    from replicax._ps.queue.tasks import Task


@final
class WorkerLane:
    """One connection to one worker: it runs one closure at a time."""

    def __init__(self, engine: Engine, worker: int) -> None:
        self.worker = worker
        self._engine = engine
        self._incarnation = -1
        self._link: RequestClient | None = None
        self._told: set[Any] = set()
        self._unused = 0
        self._addresses: list[Any] = []
        self._started = False
        self._newest, self._turn = -1, 0

    def run(self, closure: Closure, *, more: bool) -> Any:
        self._started = False
        # A closure scheduled after values were pulled ahead may have to see newer ones.
        self._turn += closure.id > self._newest
        self._newest = closure.newest
        task = closure.task.of(self.worker)
        shared = [source.splits for source in task.iterators if source.splits is not None]
        has_ended = True
        try:
            return self._result(closure.id, *self._run(closure, task, more=more))
        except (WorkerGone, ServerGone):
            has_ended = False  # so it will get the same batches
            raise
        except ComesLater:
            has_ended = False
            for splits in shared:
                splits.release(closure)
            raise
        finally:
            for splits in shared if has_ended else ():
                splits.finish(closure)

    def recover(self) -> None:
        """Wait until the worker is back; if only the connection broke, connect again."""
        self.close()
        try:
            self._connect(self._found())
        except (ConnectionLost, OSError) as error:  # it has died again already
            raise WorkerGone(self.worker, str(error), started=False) from error

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _run(self, closure: Closure, task: Task, *, more: bool) -> tuple[Program, Any]:
        """Let the worker run a closure; return its answer and the program that it ran."""
        iterators = task.iterators
        shapes: dict[int, Any] = {}
        program = task.family.usual
        while True:
            # The places of the batches first: there may be none, or none yet.
            places = [
                source.place(closure, number, self.worker)
                for number, source in enumerate(iterators)
            ]
            sources = [
                (source.number, source.dataset.number, source.epoch, place)
                for source, place in zip(iterators, places, strict=True)
            ]
            reply = self._call(closure, task, program, sources, more=more)
            if "need" in reply.head:
                shapes[reply.head["source"]] = reply.head["need"]
                program = task.family.program(shapes)
            elif "ended" in reply.head:
                number = reply.head["source"]
                iterators[number].splits.ended(closure, number, reply.head["ended"])
            else:
                return program, reply

    def _call(
        self, closure: Closure, task: Task, program: Program, sources: Any, *, more: bool
    ) -> Any:
        engine = self._engine
        engine.ready()
        try:
            link = self._link or self._connect(
                engine.cluster.member("worker", self.worker, timeout=engine.patience)
            )
            addresses = engine.client.addresses
            if addresses != self._addresses:
                link.call("servers", {"addresses": addresses})
                self._addresses = addresses
            self._tell(link, program, task.iterators)
            unused = engine.unused[self._unused :]
            head = {
                "closure": closure.id,
                "program": program.digest,
                "epoch": f"{engine.epoch}.{self._turn}",
                "more": more,
                "arrays": [[str(a.dtype), a.shape] for a in task.arrays],
                "sources": sources,
                "unused": unused,
            }
            self._started = True
            reply = link.call("run", head, [raw(array) for array in task.arrays])
            self._unused += len(unused)
        except (ConnectionLost, Refused, OSError) as error:
            self.close()
            raise WorkerGone(self.worker, str(error), self._started) from error
        return reply

    def _result(self, closure: int, program: Program, reply: Any) -> Any:
        if "gone" in reply.head:
            raise ServerGone(reply.head["gone"])
        if "failed" in reply.head:
            raise pickle.loads(reply.buffers[0])
        self._engine.recoveries.note(closure, reply.head["pushed"], reply.head["clocks"])
        arrays = [
            array_of(buffer, dtype, shape)
            for (dtype, shape), buffer in zip(reply.head["results"], reply.buffers, strict=True)
        ]
        return assembled(program, arrays)

    def _tell(self, link: RequestClient, program: Program, iterators: Sequence[Any]) -> None:
        """Send what the worker does not have yet: its data sets and a program."""
        for source in iterators:
            dataset = source.dataset
            if dataset.number not in self._told:
                head = {"number": dataset.number}
                if not link.call("dataset", head).head["known"]:  # maybe large: sent once
                    link.call("dataset", head, [dataset.payload])
                self._told.add(dataset.number)
        if program.digest in self._told:
            return
        meta = json.dumps(program.meta).encode()
        link.call("program", {"digest": program.digest}, [meta, program.main, program.ids])
        self._told.add(program.digest)

    def _found(self) -> Member:
        """The same worker if it answers, else its successor."""
        engine, known = self._engine, self._incarnation
        member = engine.cluster.member("worker", self.worker, timeout=engine.patience)
        if member.incarnation != known or engine.dial.is_there(member.addresses):
            return member
        return engine.cluster.member("worker", self.worker, after=known, timeout=engine.patience)

    def _connect(self, member: Member) -> RequestClient:
        self._incarnation = member.incarnation
        self._told, self._addresses, self._unused = set(), [], 0
        self._link = self._engine.dial(member.addresses)
        return self._link
