"""The worker processes of a pass: their start and end, and what they run and send. Needs Grain."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterable
from functools import partial
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, final

import cloudpickle
import grain
import jax
import numpy as np
from absl import flags

from replicax._core.errors import DataError, UsageError
from replicax.data._nodes.share import Share, shared

if TYPE_CHECKING:
    from replicax.data._node import Cursor
    from replicax.data._nodes.workers import Job

# Grain 0.2.18 fails if nobody parsed the program's flags:
# https://github.com/google/grain/issues/1355
_PROFILING = "grain_enable_multiprocess_worker_profiling"

_NOTE = 4096  # bytes of position per element, on average
_SWITCH = 2e-4  # seconds before the sending thread may interrupt the computing one
_PATIENCE = 2.0  # seconds that a worker has to end on its own
_SMALL = 2048  # bytes; a write of at most this size reaches the pipe whole or not at all
_LARGE = 8 * 2**20  # bytes; smaller arrays are copied: each block of shared memory is an open file
_ALIGNMENT = 64


@final
class WorkerPool:
    """Worker processes, started by the first `receive`; each makes `buffer_size` elements ahead."""

    def __init__(self, job: Job, buffer_size: int) -> None:
        try:
            pickled = cloudpickle.dumps(job)
        except Exception as error:
            raise UsageError(
                "Cannot send the pipeline before `in_processes` to another process: "
                f"{type(error).__name__}: {error}. Create locks, open files and generators inside "
                "the function that uses them."
            ) from error
        if _PROFILING in flags.FLAGS:
            flags.FLAGS[_PROFILING].present = 1
        # The workers go on as long as this file exists.
        descriptor, self._lifeline = tempfile.mkstemp(prefix="replicax-workers-")
        os.close(descriptor)
        options = grain.multiprocessing.MultiprocessingOptions(len(job.notes), buffer_size)
        settle = partial(settle_in, self._lifeline)
        self._packets: Any = iter(Packets(pickled).mp_prefetch(options, settle))

    def receive(self) -> tuple[str, Any, Any]:
        """The next packet of `PacketIterator`, from the workers in turn."""
        return unpacked(next(self._packets))

    def end(self) -> None:
        """End all workers, whatever they are doing."""
        with contextlib.suppress(OSError):
            os.unlink(self._lifeline)
        packets, self._packets = self._packets, None
        if packets is not None:
            packets.close()


def settle_in(lifeline: str, index: int, count: int) -> None:
    """Prepare a worker process before it unpickles anything of the user's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the reader ends them
    jax.config.update("jax_platforms", "cpu")  # accelerators belong to the reader
    sys.setswitchinterval(_SWITCH)
    threading.Thread(target=_watch, args=(lifeline,), daemon=True).start()


def _watch(lifeline: str) -> None:
    """End with the reader, even if it was killed or this process is stuck."""
    reader = parent_process()
    while os.path.exists(lifeline) and (reader is None or reader.is_alive()):
        time.sleep(0.5)
    with contextlib.suppress(OSError):  # left behind by a reader that was killed
        os.unlink(lifeline)
    time.sleep(_PATIENCE)
    os.kill(os.getpid(), signal.SIGKILL)  # Python's own exits end only a thread, or wait for others


@final
class Packets(grain.IterDataset):
    """The packets of one worker; Grain tells its number by setting a slice."""

    def __init__(self, job: bytes) -> None:
        super().__init__()
        self._job = job
        self._turn = 0

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        self._turn = sl.start or 0

    def __iter__(self) -> PacketIterator:
        return PacketIterator(self._job, self._turn)


@final
class PacketIterator(grain.DatasetIterator):
    """Packets: a kind, a value and, now and then, the position after it.

    The end is a packet, too: Grain would keep a StopIteration alive, and with it all frames above.
    """

    def __init__(self, job: bytes, turn: int) -> None:
        super().__init__()
        self._job = job
        self._turn = turn
        self._cursor: Cursor | None = None
        self._unnoted = 0  # elements to come without a position

    def __next__(self) -> Any:
        try:
            if self._cursor is None:
                self._cursor = _opened(pickle.loads(self._job), self._turn)
            for element in self._cursor.read(1):
                value = jax.tree.map(_in_host_memory, element)
                return packed(("value", value, self._note()))
            return packed(("end", None, None))
        except (Exception, SystemExit) as error:
            self._unnoted = 0
            return packed(("error", _portable(error), self._note()))

    def _note(self) -> bytes | None:
        """The position; one that holds many elements is sent only now and then."""
        if self._cursor is None:
            return None
        if self._unnoted:
            self._unnoted -= 1
            return None
        note = cloudpickle.dumps(self._cursor.get_state())
        self._unnoted = len(note) // _NOTE
        return note

    def get_state(self) -> dict[str, Any]:
        return {}  # positions are in the packets

    def set_state(self, state: dict[str, Any]) -> None:
        pass


def _opened(job: Job, turn: int) -> Cursor:
    num = len(job.notes)
    index = (job.taken + turn) % num
    position, since = job.notes[index]
    cursor = shared(job.node, Share(job.offset, num, index)).open(job.path)
    if position is not None:
        cursor.set_state(position)
    cursor.skip(since)
    return cursor


def _in_host_memory(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def _portable(error: BaseException) -> BaseException:
    """The error with its traceback as a note, because causes and tracebacks are not pickled."""
    error.add_note(f"In a worker process: {''.join(traceback.format_exception(error))}")
    with contextlib.suppress(Exception):
        pickle.loads(cloudpickle.dumps(error))
        return error
    return DataError(
        f"A worker process raised {type(error).__name__}: {error}. The class of the error cannot "
        f"be sent to this process; `in_processes(0)` raises it as it is. {error.__notes__[-1]}"
    )


def packed(value: Any) -> Any:
    """A value on its way to another process: bytes if it is small, else a block of memory."""
    buffers: list[pickle.PickleBuffer] = []
    head = cloudpickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
    sizes = np.array([len(parts), *(part.nbytes for part in parts)], np.int64)
    parts.insert(0, memoryview(sizes.tobytes()))
    starts = _starts(part.nbytes for part in parts)
    if starts[-1] <= _SMALL:
        return cloudpickle.dumps(value)
    memory = grain.multiprocessing.SharedMemoryArray((starts[-1],), np.uint8)
    for start, part in zip(starts, parts, strict=False):
        memory[start : start + part.nbytes] = np.frombuffer(part, np.uint8)
    return memory


def unpacked(packet: Any) -> Any:
    """The value that was `packed`; large arrays stay in shared memory."""
    if isinstance(packet, bytes):
        return pickle.loads(packet)
    memory = packet if packet.nbytes > _LARGE else np.array(packet)
    first = 8 * (1 + int(memory[:8].view(np.int64)[0]))
    sizes = memory[8:first].view(np.int64).tolist()
    starts = _starts([first, *sizes])[1:]
    head, *buffers = [memory[s : s + n] for s, n in zip(starts, sizes, strict=False)]
    return pickle.loads(head.tobytes(), buffers=buffers)


def _starts(sizes: Iterable[int]) -> list[int]:
    """The aligned starts of parts of these sizes, and the end of the last one."""
    starts = [0]
    for size in sizes:
        starts.append(-(-(starts[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    return starts
