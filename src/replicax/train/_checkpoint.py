"""`Checkpoint`: the state of a training run, saved by the chief and restored by all workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, final

from replicax._control import current
from replicax._core.errors import UsageError
from replicax._input.iterator import DistributedIterator
from replicax.train import _files
from replicax.train._parts import (
    Stateful,
    Variables,
    assign,
    build_optimizers,
    matched,
    parts_of,
    rows_of,
    to_host,
)
from replicax.train._plain import decoded, encoded
from replicax.train._status import LoadStatus
from replicax.train._together import together

if TYPE_CHECKING:
    import numpy as np

    from replicax._control import Channel


@final
class Checkpoint:
    """Objects that are saved and restored together.

    Models with their compiled optimizers, layers, optimizers, metrics, `keras.Variable`s, seed
    generators, iterators of `rx.data` and of distributed data sets, `rx.train.Value`s, whatever
    else has `get_state` and `set_state`, and dicts and lists of these.

    With several workers all of them call the same methods. The chief writes; what an iterator
    has read is asked of every worker.

    **Differs from TF:** the state of iterators on all workers is kept, a restored number of
    workers and replicas may be another one, and restoring is checked at once: variables that the
    checkpoint has no value for are an error, and so are other shapes and types.

    Args:
        **objects: The objects by name.

    Raises:
        UsageError: If an object can be neither.

    Example:
        >>> import tempfile, keras
        >>> import replicax as rx
        >>> total = keras.Variable(1.0)
        >>> checkpoint = rx.train.Checkpoint(total=total, step=rx.train.Value(3))
        >>> path = checkpoint.save(f"{tempfile.mkdtemp()}/ckpt")
        >>> _ = total.assign(5.0)
        >>> status = checkpoint.restore(path)
        >>> float(total)
        1.0
    """

    def __init__(self, **objects: Any) -> None:
        parts_of(objects)
        self._objects = objects
        self._tracked: list[Stateful] = []
        self._count = 0
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []
        self._channel: Channel | None = None

    @property
    def channel(self) -> Channel:
        """The line between the workers that save and restore together: all of the cluster."""
        return self._channel or current()

    def among(self, channel: Channel) -> Checkpoint:
        """Save and restore among other workers, such as none for a model that trains alone.

        Args:
            channel: The line between them.

        Returns:
            This checkpoint.
        """
        self._channel = channel
        return self

    @property
    def save_counter(self) -> int:
        """How many times `save` was called, in this run and in those that it goes on from."""
        return self._count

    def track(self, name: str, value: Any) -> None:
        """Add an object with `get_state` and `set_state`; a checkpoint without it is restored too.

        Args:
            name: Its name, which no other object has.
            value: The object.
        """
        self._tracked = [part for part in self._tracked if part.name != name]
        self._tracked.append(Stateful(name, value, optional=True))

    def save(self, file_prefix: str | os.PathLike[str], *, asynchronous: bool = False) -> str:
        """Write to `file_prefix-N`, N being how many times this was called.

        Args:
            file_prefix: The path without the number.
            asynchronous: See `write`.

        Returns:
            The path.
        """
        self._count += 1
        return self.write(f"{os.fspath(file_prefix)}-{self._count}", asynchronous=asynchronous)

    def write(
        self,
        path: str | os.PathLike[str],
        *,
        asynchronous: bool = False,
        then: Callable[[], None] | None = None,
    ) -> str:
        """Write to a folder, whole or not at all; one that is there is replaced.

        Args:
            path: The folder.
            asynchronous: Copy to host memory and return; a thread writes. A failure of it is
                raised by the next `write`, or by `wait`.
            then: What the chief does after writing.

        Returns:
            The path.

        Raises:
            OSError: On all workers, if the chief could not write.
        """
        self.wait()
        path = os.fspath(path)
        content = self._collected(copy=asynchronous)
        job = partial(_write, path, content, then) if self.channel.is_chief else _nothing
        if asynchronous:
            self._thread = threading.Thread(target=self._guarded, args=(job,))
            self._thread.start()
        else:
            together(self.channel, "written", job)
        return path

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._failures.append(error)

    def wait(self) -> None:
        """Wait until what is written asynchronously is on disk.

        Raises:
            OSError: On all workers, if the chief could not write.
        """
        if self._thread is None:
            return
        self._thread.join()
        self._thread = None
        together(self.channel, "written", self._raise_failure)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures.pop()

    def restore(self, path: str | os.PathLike[str] | None) -> LoadStatus:
        """Restore what `save` has written, and go on counting from it.

        Args:
            path: The folder; None, as `latest_checkpoint` may say, changes nothing.

        Raises:
            CheckpointError: If there is no whole checkpoint.
            UsageError: If it does not fit these objects.
        """
        return LoadStatus() if path is None else self._read(os.fspath(path), counted=True)

    def read(self, path: str | os.PathLike[str]) -> LoadStatus:
        """Restore what `write` has written; see `restore`."""
        return self._read(os.fspath(path), counted=False)

    def _read(self, path: str, *, counted: bool) -> LoadStatus:
        self.wait()
        channel = self.channel
        payload = _seen_alike(channel, path)
        body, arrays = together(channel, "read", partial(_content, path, payload))
        parts = self._parts()
        plan = together(channel, "matched", lambda: _plan(parts, body["parts"], path))
        for variable, key in plan:
            assign(variable, arrays, key)
        together(channel, "restored", partial(_set_states, channel, parts, body["parts"]))
        if counted:
            self._count = body["save_counter"]
        return LoadStatus(sorted(set(body["parts"]) - {part.name for part in parts}))

    def _parts(self) -> list[Variables | Stateful]:
        parts = [*parts_of(self._objects), *self._tracked]
        build_optimizers(parts)
        return parts

    def _collected(self, *, copy: bool) -> _files.Content:
        channel = self.channel
        parts = together(channel, "collected", self._parts)
        arrays: dict[str, np.ndarray] = {}
        body: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Variables):
                body[part.name] = {"variables": [], "workers": None}
                for index, variable in enumerate(part.variables if channel.is_chief else ()):
                    key = f"{part.name}:{index}"
                    value = arrays[key] = to_host(variable, copy=copy)
                    behind = rows_of(variable).items()
                    arrays.update({f"{key}/{name}": array for name, array in behind})
                    about = {"shape": list(value.shape), "dtype": value.dtype.name}
                    body[part.name]["variables"].append({"path": variable.path, **about})
        states = [part for part in parts if isinstance(part, Stateful)]
        own = together(
            self.channel, "states", lambda: [encoded(part.owner.get_state()) for part in states]
        )
        of_all = channel.exchange("checkpoint positions", own)
        for index, part in enumerate(states):
            body[part.name] = {"states": [worker[index] for worker in of_all]}
        return _files.Content({"parts": body, "save_counter": self._count}, arrays)


def _write(path: str, content: _files.Content, then: Callable[[], None] | None) -> None:
    _files.write(path, content)
    if then is not None:
        then()


def _nothing() -> None:
    """What other workers than the chief write."""


def _seen_alike(channel: Channel, path: str) -> bytes | None:
    """None if all workers see the same checkpoint; else the chief's, in bytes."""
    seen = channel.exchange("checkpoint seen", _files.identity(path))
    if seen[0] is None or all(one == seen[0] for one in seen):
        return None
    return channel.from_chief("checkpoint", _files.packed(path) if channel.is_chief else b"")


def _content(path: str, payload: bytes | None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    content = _files.read(path) if payload is None else _files.unpacked(payload, path)
    return content.body, content.arrays


def _plan(
    parts: Sequence[Variables | Stateful], saved: dict[str, Any], path: str
) -> list[tuple[Any, str]]:
    """Which variable gets which array; nothing is changed before all of it is known to fit."""
    plan = []
    for part in parts:
        if part.name not in saved and not (isinstance(part, Stateful) and part.optional):
            raise UsageError(
                "A checkpoint holds all that is restored from it. Received: "
                f"{path!r} with {sorted(saved)}, without {part.name!r}. It would stay as it was "
                "made, silently. Give the objects the names that they were saved by, or leave "
                "this one out."
            )
        if isinstance(part, Variables):
            variables, entries = part.variables, saved[part.name].get("variables", ())
            found = matched(part.name, entries, variables)
            plan += [
                (variable, f"{part.name}:{index}")
                for variable, index in zip(variables, found, strict=True)
            ]
    return plan


def _set_states(
    channel: Channel, parts: Sequence[Variables | Stateful], saved: dict[str, Any]
) -> None:
    for part in parts:
        if not isinstance(part, Stateful) or part.name not in saved:
            continue
        states = [decoded(state) for state in saved[part.name]["states"]]
        if isinstance(part.owner, DistributedIterator) or hasattr(part.owner, "states_of_all"):
            part.owner.set_state(states)  # it knows how other workers have shared the data
        else:
            part.owner.set_state(states[channel.index if len(states) == channel.size else 0])
