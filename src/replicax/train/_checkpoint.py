"""`Checkpoint`: the state of a training run, saved by the chief and restored by all workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from replicax._core.channel import Channel, current
from replicax._core.errors import UsageError
from replicax._program.agreement import StateCheck
from replicax.train import _files
from replicax.train._bundle import Bundle, is_bundle
from replicax.train._parts import (
    LeftOvers,
    Part,
    Source,
    Stateful,
    Variables,
    build_optimizers,
    names_of,
    parts_of,
    sources_of,
)
from replicax.train._plain import encoded
from replicax.train._restored import Restored, follow_modules, followed, seen_by_all
from replicax.train._status import CheckpointOptions, LoadStatus
from replicax.train._theirs import RestoredGraph
from replicax.train._workers import (
    Collected,
    DividedSave,
    copied,
    make_room,
    opened,
    together,
    write_alone,
    written_by_thread,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from replicax.train._files import Piece

_OWN = frozenset(
    {"_objects", "_tracked", "_count", "_writing", "_channel", "_restored", "_followers"}
)


class Checkpoint:
    """Objects that are saved and restored together.

    Models with their compiled optimizers, layers, optimizers, metrics, `keras.Variable`s, seed
    generators, iterators of `rx.data` and of distributed data sets, `rx.train.Value`s, whatever
    else has `get_state` and `set_state`; and lists, dicts, `rx.Module`s and checkpoints of these.
    An object may be set as an attribute at any time, also after `restore`: it gets its values then.

    With several workers all of them call the same methods. The chief writes; what an iterator
    has read is asked of every worker. What is not built yet when it is restored gets its values
    when it is built.

    **Differs from TF:** the state of iterators on all workers is kept, a restored number of
    workers and replicas may be another one, and restoring is checked at once: variables that the
    checkpoint has no value for are an error, and so are other shapes and types.

    Args:
        root: An object without a name; it is called "root".
        **objects: The objects by name; each is an attribute of the checkpoint.

    Raises:
        UsageError: If an object cannot be saved or restored.

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

    def __init__(self, root: Any = None, **objects: Any) -> None:
        self._objects: dict[str, Any] = {}
        self._tracked: list[Stateful] = []
        self._count = 0
        self._writing: Future[None] | None = None
        self._channel: Channel | None = None
        self._restored: Restored | RestoredGraph | None = None
        self._followers: dict[Callable[[], object], None] = {}
        for name, value in {**({} if root is None else {"root": root}), **objects}.items():
            self._track(name, value)

    if not TYPE_CHECKING:  # a type checker would take every attribute to exist

        def __getattr__(self, name: str) -> Any:
            objects = self.__dict__.get("_objects", {})
            if name not in objects:
                raise AttributeError(
                    f"The checkpoint has no object {name!r}, only {sorted(objects)}. Set it, as "
                    f"`checkpoint.{name} = …`, or pass it to `Checkpoint`."
                )
            if self._restored is not None and self._restored.unused:
                return followed(objects[name], self._settle)
            return objects[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            super().__setattr__(name, value)
        else:
            self._track(name, value)

    def __delattr__(self, name: str) -> None:
        if self._objects.pop(name, None) is None:
            super().__delattr__(name)

    def _track(self, name: str, value: Any) -> None:
        """Add an object and give it the values that were restored for it earlier."""
        if name in _OWN or hasattr(type(self), name):
            raise UsageError(
                f"{name!r} is a name of the checkpoint itself. Give the object another one."
            )
        parts_of({name: value})
        self._objects[name] = value
        if self._restored is not None and self._restored.unused:
            follow_modules(value, self._settle)
            self._settle()
        for call in tuple(self._followers):
            call()

    def after_setting(self, call: Callable[[], object]) -> None:
        """Call a function whenever an object is added; for a checkpoint around this one."""
        self._followers[call] = None

    @property
    def tracked_objects(self) -> Mapping[str, Any]:
        """The objects by name; a checkpoint in a checkpoint is saved as these."""
        return MappingProxyType(self._objects)

    @property
    def channel(self) -> Channel:
        """The channel between the workers that save and restore together, by default all."""
        return self._channel or current()

    def among(self, channel: Channel) -> Checkpoint:
        """Save and restore among other workers, such as none for a model that trains alone.

        Args:
            channel: The channel between them.

        Returns:
            This checkpoint.
        """
        self._channel = channel
        return self

    @property
    def save_counter(self) -> int:
        """The number of calls of `save`, in this run and in the runs that it continues."""
        return self._count

    def count(self) -> None:
        """Count one more save."""
        self._count += 1

    def track(self, name: str, value: Any) -> None:
        """Add an object with `get_state` and `set_state`; a checkpoint without it can be restored.

        Args:
            name: Its name, which no other object has.
            value: The object.
        """
        self._tracked = [part for part in self._tracked if part.name != name]
        self._tracked.append(Stateful(name, value, optional=True))

    def save(
        self,
        file_prefix: str | os.PathLike[str],
        options: CheckpointOptions | None = None,
        *,
        asynchronous: bool = False,
    ) -> str:
        """Write to `file_prefix-N`, N being how many times this was called.

        Args:
            file_prefix: The path without the number.
            options: See `write`.
            asynchronous: See `write`.

        Returns:
            The path.
        """
        self.count()
        path = f"{os.fspath(file_prefix)}-{self._count}"
        return self.write(path, options, asynchronous=asynchronous, then=partial(self.saved, path))

    def saved(self, path: str) -> None:
        """Called by the chief when a `save`, here or of a manager, has written.

        Args:
            path: What it has written.
        """

    def write(
        self,
        file_prefix: str | os.PathLike[str],
        options: CheckpointOptions | None = None,
        *,
        asynchronous: bool = False,
        then: Callable[[], None] | None = None,
    ) -> str:
        """Write to a folder, whole or not at all; one that is there is replaced.

        Args:
            file_prefix: The folder.
            options: TensorFlow's way to say the same as `asynchronous`.
            asynchronous: Copy to host memory and return; a thread writes. A failure of it is
                raised by the next `write`, or by `wait`. Arrays that no worker has whole are
                written at once where workers do not share the folder.
            then: What the chief does after writing.

        Returns:
            The path.

        Raises:
            OSError: On all workers, if the chief could not write.
        """
        self.wait()
        path, options = os.fspath(file_prefix), options or CheckpointOptions()
        asynchronous = asynchronous or options.asynchronous
        channel, collected = self.channel, self._collected()
        calls = [*([then] if then else []), partial(options.written, path)]
        save = DividedSave(channel, path) if collected.is_divided else None
        if save is not None and not save.is_shared:
            # The chief's memory holds one array at a time, so it writes now.
            collected, asynchronous = collected.gathered(), False
        pieces: Iterable[Piece] = collected.pieces(is_chief=channel.is_chief)
        if asynchronous:
            pieces = copied(pieces) if save is None else save.copied(pieces)
        if save is not None:
            job: Callable[[], None] = partial(save.write, collected.body, pieces, calls)
        elif channel.is_chief:
            job = partial(write_alone, path, collected.body, pieces, calls)
        else:
            job = partial(make_room, path)
        if asynchronous:
            self._writing = written_by_thread(job)
        elif save is not None:
            job()
        else:
            together(channel, "written", job)
        return path

    def wait(self) -> None:
        """Wait until what is written asynchronously is on disk.

        Raises:
            OSError: On all workers, if the chief could not write.
        """
        writing = self._writing
        if writing is not None:
            writing.exception()  # waits; an interrupted call has not waited
            self._writing = None
            together(self.channel, "written", writing.result)

    sync = wait

    def restore(
        self, save_path: str | os.PathLike[str] | None, options: CheckpointOptions | None = None
    ) -> LoadStatus:
        """Restore what `save` has written, here or in TensorFlow, and go on counting from it.

        All workers must see the files of a TensorFlow checkpoint. Iterators, and variables of
        optimizers that have no value there, stay as they are, and a warning says so.

        Args:
            save_path: The folder, or the path of TensorFlow's without `.index`; None, as
                `latest_checkpoint` may say, changes nothing.
            options: Ignored.

        Raises:
            CheckpointError: If there is no whole checkpoint.
            UsageError: If it does not fit these objects.
        """
        return LoadStatus() if save_path is None else self._read(os.fspath(save_path), counted=True)

    def read(
        self, save_path: str | os.PathLike[str], options: CheckpointOptions | None = None
    ) -> LoadStatus:
        """Restore what `write` has written; see `restore`."""
        return self._read(os.fspath(save_path), counted=False)

    def _read(self, path: str, *, counted: bool) -> LoadStatus:
        self.wait()
        channel = self.channel
        if any(channel.exchange("checkpoint kind", is_bundle(path) and not _files.is_there(path))):
            bundle = together(channel, "read", partial(Bundle, path))
            seen_by_all(channel, path, bundle.index)
            restored: Restored | RestoredGraph = RestoredGraph(path, bundle, self._parts)
            count = restored.save_counter
        else:
            content = opened(channel, path)
            parts, count = content.body["parts"], content.body["save_counter"]
            restored = Restored(path, parts, content.arrays, self._parts, channel)
        together(channel, "restored", together(channel, "matched", restored.restore))
        if counted:
            self._count = count
        self._restored = restored
        if restored.unused:
            follow_modules(self._objects, self._settle)
        return LoadStatus(restored)

    def _settle(self) -> None:
        """Give objects that came after `restore` their values."""
        if self._restored is not None:
            self._restored.settle()

    def _parts(self) -> list[Part]:
        parts = [*parts_of(self._objects), *self._tracked]
        build_optimizers(parts)
        return parts

    def _collected(self) -> Collected:
        channel = self.channel
        parts = together(channel, "collected", self._parts)
        if channel.size > 1:
            StateCheck().compare(
                [pair for part in parts if isinstance(part, Variables) for pair in part.values()]
            )
        sources: dict[str, Source] = {}
        body: dict[str, Any] = {}
        for part in parts:
            if isinstance(part, Stateful) or (isinstance(part, LeftOvers) and part.owner.is_empty):
                continue
            entries = []
            names = names_of(part) if channel.is_chief else []
            for index, source in enumerate(sources_of(part)):
                sources[f"{part.name}:{index}"] = source
                about = {"path": source.path, "shape": [*source.shape], "dtype": source.dtype}
                entries.append({**about, **({"name": names[index]} if names else {})})
            body[part.name] = {"variables": entries}
        states = [part for part in parts if isinstance(part, Stateful)]
        own = together(
            self.channel, "states", lambda: [encoded(part.owner.get_state()) for part in states]
        )
        of_all = channel.exchange("checkpoint positions", own)
        for index, part in enumerate(states):
            body[part.name] = {"states": [worker[index] for worker in of_all]}
        return Collected({"parts": body, "save_counter": self._count}, sources)
