"""How the workers of a cluster save and restore one checkpoint together."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from replicax._core.errors import CheckpointError
from replicax.train import _files
from replicax.train._files import Draft, Piece

if TYPE_CHECKING:
    from replicax._core.channel import Channel
    from replicax.train._parts import Source

_Result = TypeVar("_Result")
_CHUNK = 16 << 20  # bytes of a message; the chief has no more of them in memory at once


def together(channel: Channel, name: str, action: Callable[[], _Result]) -> _Result:
    """Do something on this worker; if it fails on any, raise on all.

    An error of this worker is raised as it is, one of another worker as a CheckpointError. `name`
    says in a word or two what is done.
    """
    failure: Exception | None = None
    result: list[_Result] = []
    try:
        result.append(action())
    except Exception as error:
        failure = error
    message = f"{type(failure).__name__}: {failure}" if failure else None
    failures = channel.exchange(f"checkpoint {name}", message)
    if failure is not None:
        raise failure
    for worker, text in enumerate(failures):
        if text is not None:
            raise CheckpointError(
                f"Worker {worker} failed to save or restore, so all workers stop: {text} Fix the "
                "cause on that worker, then start again."
            )
    return result[0]


def written_by_thread(job: Callable[[], None]) -> Future[None]:
    """Let a thread of its own write while training goes on."""
    pool = ThreadPoolExecutor(1)
    writing = pool.submit(job)
    pool.shutdown(wait=False)  # the thread ends with its job
    return writing


@dataclass(frozen=True)
class Collected:
    """A checkpoint to write: the body on the chief, and by name the parts of each worker."""

    body: dict[str, Any]
    sources: dict[str, Source]

    @property
    def is_divided(self) -> bool:
        """Whether there are arrays that no worker has whole."""
        return any(source.spread is not None for source in self.sources.values())

    def pieces(self, *, is_chief: bool) -> Iterable[Piece]:
        """The pieces of this worker, each copied to the host when its turn comes."""
        for name, source in self.sources.items():
            if is_chief or source.spread is not None:
                yield from source.pieces(name)
            if is_chief:
                for behind, array in source.behind.items():
                    yield _files.whole(f"{name}/{behind}", array)

    def gathered(self) -> Collected:
        """The same, with everything whole on the chief."""
        found = {name: source.gathered() for name, source in self.sources.items()}
        return replace(self, sources=found)


def copied(pieces: Iterable[Piece]) -> list[Piece]:
    """Pieces in memory of their own, for steps that run before they are written."""
    return [
        # On the CPU, NumPy shares the array's memory, which a step may reuse.
        replace(
            piece, chunks=partial(iter, [np.array(chunk) for chunk in piece.chunks()]), owner=None
        )
        for piece in pieces
    ]


def write_alone(
    path: str, body: dict[str, Any], pieces: Iterable[Piece], calls: Sequence[Callable[[], None]]
) -> None:
    """Write a checkpoint on the chief, who has everything."""
    _files.write(path, body, pieces)
    for call in calls:
        call()


def make_room(path: str) -> None:
    """Make the folder around the checkpoint, on workers other than the chief.

    TensorFlow programs give each worker a folder of its own and remove it afterwards.
    """
    if not _files.is_url(path):
        with contextlib.suppress(OSError):  # only the chief may be able to write there
            os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)


class DividedSave:
    """A save of arrays that no worker has whole.

    Each worker writes what it owns of them into the chief's draft, and the chief commits it when
    all have done so. If a worker does not see the draft, the chief writes all, an array after
    another.
    """

    def __init__(self, channel: Channel, path: str) -> None:
        self._channel, self._path = channel, path
        make_room(path)
        self._draft = together(channel, "begun", partial(self._begin, path))
        payload = "\n".join([self._draft.place, self._draft.label]) if self._draft else ""
        place = channel.from_chief("checkpoint place", payload.encode()).decode()
        self._place, self._label = place.split("\n")
        is_seen = _files.is_url(self._place) or os.path.isdir(self._place)
        self.is_shared = all(channel.exchange("checkpoint place seen", is_seen))

    def _begin(self, path: str) -> Draft | None:
        if not self._channel.is_chief:
            return None
        with _files.refused_by_disk(path):
            return Draft(path)

    def copied(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Copy this worker's pieces to host memory; what fails on one worker fails on all."""
        with self._discarded_by_failure():
            return together(self._channel, "copied", partial(copied, pieces))

    def write(
        self, body: dict[str, Any], pieces: Iterable[Piece], calls: Sequence[Callable[[], None]]
    ) -> None:
        """Write this worker's pieces, in any thread; what fails on one worker fails on all."""
        # Two checkpoints may be written at once, and the order of calls of one name counts.
        name = f"{self._place}{self._label}"
        with self._discarded_by_failure():
            own = together(self._channel, f"{name} written", partial(self._written, pieces))
            written = self._channel.exchange(f"checkpoint {name}", own)
            commit = partial(self._commit, body, written, calls)
            together(self._channel, f"{name} committed", commit)

    @contextlib.contextmanager
    def _discarded_by_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            if self._draft is not None:
                self._draft.discard()
            raise

    def _written(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        with _files.refused_by_disk(self._path):
            return self._write(pieces)

    def _write(self, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
        index = self._channel.index
        taken = pieces if self.is_shared else _taken(pieces)
        try:
            if self.is_shared or index == 0:
                return _files.write_arrays(self._place, _files.file_of(index, self._label), taken)
            return []
        finally:
            if not self.is_shared:
                for _ in taken:
                    """Take part in gathering, or others would wait for ever."""

    def _commit(
        self,
        body: dict[str, Any],
        written: Sequence[Sequence[dict[str, Any]]],
        calls: Sequence[Callable[[], None]],
    ) -> None:
        if self._draft is not None:
            with _files.refused_by_disk(self._path):
                self._draft.commit(body, written)
            for call in calls:
                call()


def _taken(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Pieces, each gathered when it is asked for."""
    for piece in pieces:
        yield replace(piece, chunks=partial(iter, list(piece.chunks())))


def opened(channel: Channel, path: str) -> _files.Content:
    """A checkpoint on all workers; who does not see it gets a copy of the chief's files."""
    seen = channel.exchange("checkpoint seen", _files.identity(path))
    if seen[0] is None or all(one == seen[0] for one in seen):
        return together(channel, "read", partial(_files.opened, path))
    own = together(channel, "read", partial(_files.opened, path) if channel.is_chief else _nothing)
    manifest = channel.from_chief("checkpoint", own.manifest if own else b"")
    folder = Path("" if own else tempfile.mkdtemp(prefix="replicax-"))
    try:
        _copy_files(channel, own, folder, manifest)
        if own:
            return own
        content = _files.described(manifest, path, _files.OnDisk(folder).open)
    except BaseException:
        if not own:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(content.arrays, shutil.rmtree, folder, ignore_errors=True)
    return content


def _copy_files(
    channel: Channel, own: _files.Content | None, folder: Path, manifest: bytes
) -> None:
    """Send the chief's files, a block after another, to the folders of the other workers."""
    for name, size in _files.lengths(manifest).items():
        for begin in range(0, size, _CHUNK):
            block = (
                partial(own.arrays.block, name, begin, min(_CHUNK, size - begin)) if own else None
            )
            read = together(channel, "sent", block or _nothing)
            chunk = channel.from_chief("checkpoint", b"" if read is None else read.tobytes())
            append = _nothing if own else partial(_append, folder / name, chunk)
            together(channel, "received", append)


def _nothing() -> None:
    """Do nothing, while the chief does something."""


def _append(path: Path, chunk: bytes) -> None:
    with open(path, "ab") as file:
        file.write(chunk)
