"""A worker: programs, the data it reads, and how it runs a closure."""

from __future__ import annotations

import json
import pickle
import threading
import traceback
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import cloudpickle
import jax
import numpy as np

from replicax._core.host_calls import Check
from replicax._cpu import kernels
from replicax._net import Reply, answering, array_of, raw
from replicax._program.compiling import compile_for, compiled, compiled_call
from replicax._ps.data.worker_data import Ended, NeedsProgram, Readers
from replicax._ps.hosts.contact import Dialer
from replicax._ps.programs import check_narrow, taken
from replicax._ps.queue.lanes import ServerGone
from replicax._ps.store.exchange import Traffic, Wanted, look_up
from replicax._ps.store.servers import Client

if TYPE_CHECKING:
    from replicax._net import Message

_of_this_process: weakref.WeakValueDictionary[str, Compiled] = weakref.WeakValueDictionary()
_one_at_a_time = threading.Lock()


@final
class Compiled:
    """A program on a worker."""

    def __init__(self, digest: str, meta: dict[str, Any], main: bytes, ids: bytes) -> None:
        self.digest, self.meta = digest, meta
        if kernels.ATTENTION.encode() in main:  # XLA has to know its value
            kernels.are_there()
        self.main = _compiled_now(main)
        self.results: list[Any] | None = None  # their types and shapes
        self.ids: Any = None
        if ids:
            self.ids = _compiled_now(ids)

    def wanted_rows(self, leaves: Sequence[Any]) -> tuple[list[Wanted], list[np.ndarray]]:
        """For each table the rows that the leaves ask for; for each lookup their places."""
        ids = self._wanted_ids(leaves)
        rows: list[Wanted] = []
        positions: list[Any] = [None] * len(ids)
        for number, table in enumerate(self.meta["tables"]):
            mine = [i for i, of in enumerate(self.meta["lookups"]) if of == number]
            wanted, found = look_up(table, np.concatenate([ids[i].reshape(-1) for i in mine]))
            rows.append(wanted)
            start = 0
            for i in mine:
                positions[i] = found[start : start + ids[i].size].reshape(ids[i].shape)
                start += ids[i].size
        return rows, positions

    def _wanted_ids(self, leaves: Sequence[Any]) -> list[np.ndarray]:
        computed = iter(())
        if self.ids is not None:
            given = [leaves[i] for i in self.meta["id_leaves"]]
            for leaf in given:
                check_narrow(leaf)
            computed = iter(self.ids(*given))
        return [
            np.asarray(next(computed)).astype(np.int64) if source is None else taken(source, leaves)
            for source in self.meta["id_sources"]
        ]


@final
class Lane:
    """A worker's state for one connection of the coordinator: its own links to the servers."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.traffic: dict[str, Traffic] = {}
        self.ahead: tuple[str, int, list[np.ndarray]] | None = None


@final
class Worker:
    """The state of one worker; a message of the operation `x` is answered by `op_x`."""

    def __init__(self, index: int, secret: bytes, settings: dict[str, Any]) -> None:
        self.index = index
        self._secret = secret
        self._addresses: list[Sequence[str]] = []
        self._programs: dict[str, Compiled] = {}
        self._readers = Readers(index)
        # One closure computes while others fetch and send: two would compete for the same cores.
        self._computing = threading.Lock()

    def handle(self, caller: Any, message: Message) -> Reply:
        return answering(self, message.op)(caller, message)

    def op_servers(self, caller: Any, message: Message) -> Reply:
        self._addresses = message.head["addresses"]
        lane = caller.state.get("lane")
        if lane is not None:
            for server, addresses in enumerate(self._addresses):
                if tuple(addresses) != lane.client.addresses[server]:
                    lane.client.move(server, addresses)
                    for traffic in lane.traffic.values():
                        traffic.forget(server)
                    lane.ahead = None
        return {}, ()

    def op_program(self, caller: Any, message: Message) -> Reply:
        digest = message.head["digest"]
        if digest not in self._programs:
            meta, main, ids = message.buffers
            with _one_at_a_time:
                # Workers in threads of one process share the compilation.
                program = _of_this_process.get(digest) or Compiled(
                    digest, json.loads(bytes(meta)), bytes(main), bytes(ids)
                )
                self._programs[digest] = _of_this_process[digest] = program
        return {}, ()

    def op_dataset(self, caller: Any, message: Message) -> Reply:
        return {"known": self._readers.add(message.head["number"], message.buffers)}, ()

    def op_run(self, caller: Any, message: Message) -> Reply:
        lane = caller.state.get("lane")
        if lane is None:
            hello = {"role": "worker", "index": self.index}
            dial = Dialer(self._secret, caller.hello["run"], hello)
            lane = caller.state["lane"] = Lane(Client(dial, self._addresses))
            # It and its links end with the coordinator's connection.
            weakref.finalize(lane, lane.client.close).atexit = False
        head = message.head
        try:
            return self._closure(lane, head, message.buffers)
        except ServerGone as error:
            lane.ahead = None
            return {"gone": error.server}, ()
        except NeedsProgram as need:
            return {"need": need.shapes, "source": need.source}, ()
        except Ended as end:
            return {"ended": end.length, "source": end.source}, ()
        except Exception as error:
            self._readers.forget(head["closure"])
            return {"failed": repr(error)}, [_pickled(error)]

    def _closure(self, lane: Lane, head: dict[str, Any], buffers: Sequence[Any]) -> Reply:
        program = self._programs[head["program"]]
        traffic = lane.traffic.get(program.digest)
        if traffic is None:
            traffic = Traffic(program.digest, program.meta, lane.client)
            lane.traffic[program.digest] = traffic
        leaves: list[Any] = [
            array_of(buffer, dtype, shape)
            for (dtype, shape), buffer in zip(head["arrays"], buffers, strict=True)
        ]
        closure, wanted = head["closure"], program.meta["batches"]
        if head["unused"]:
            self._readers.drop(head["unused"])
        if wanted:
            leaves += self._readers.batches(closure, wanted, head["sources"])
        rows, positions = program.wanted_rows(leaves) if program.meta["lookups"] else (None, [])
        ahead, lane.ahead = lane.ahead, None
        clocks: dict[int, int] = {}
        pushed: list[int] = []
        if rows is None and ahead is not None and ahead[:2] == (program.digest, head["epoch"]):
            values, found = ahead[2], []
        else:
            values, found, clocks = traffic.trip(closure, outputs=None, wanted=rows, pull=True)
        given = {"value": values, "leaf": leaves, "rows": found, "positions": positions}
        inputs = [given[kind][index] for kind, index in program.meta["inputs"]]
        with self._computing:
            outputs = [np.asarray(output) for output in program.main(*inputs)]
        for texts, found in program.meta["checks"]:  # before any server is changed
            Check(*texts)(*(outputs[position] for position in found))
        if program.meta["pushes"] or program.meta["writes"]:
            more = head["more"] and rows is None
            values, _, clocks = traffic.trip(closure, outputs=outputs, rows=rows, pull=more)
            pushed = traffic.pushed
            if more:
                lane.ahead = program.digest, head["epoch"], values
        if wanted:
            self._readers.forget(closure)
        results = outputs[: program.meta["results"]]
        if program.results is None:  # they never change
            program.results = [[str(result.dtype), list(result.shape)] for result in results]
        head = {"results": program.results, "clocks": clocks, "pushed": pushed}
        return head, [raw(result) for result in results]


def _compiled_now(code: bytes) -> Any:
    """A program, compiled before its values are pulled, which would grow old meanwhile."""
    exported = jax.export.deserialize(bytearray(code))
    program = compiled(exported.call)
    compile_for(program, *(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in exported.in_avals))
    return compiled_call(program)


def _pickled(error: Exception) -> bytes:
    """An error for the coordinator to raise, with this worker's traceback in a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        data = cloudpickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return cloudpickle.dumps(RuntimeError(repr(error)))
    return data
