"""Checks, before the first step, that callbacks of `fit` can write their files.

Keras opens the files after an epoch or later: the training until then would be lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import string
import tempfile
from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, final

import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._core.channel import Channel

# The attribute with the folder, of Keras' callbacks; ours say it by `writes_below`.
_FOLDERS = {"TensorBoard": "log_dir", "OrbaxCheckpoint": "directory"}


class Destination(NamedTuple):
    """A path that a callback will write."""

    path: str
    is_folder: bool = False  # whether files will be written below it
    makes_folder: bool = True  # whether the callback makes the folder of a file

    def probe(self) -> None:
        """Raise `OSError` if it cannot be written; an existing file stays as it is."""
        path = os.path.realpath(self.path)
        if self.is_folder:
            _probe_folder(path)
        elif os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        elif os.path.isfile(path):
            with open(path, "r+b"):
                pass
        elif not _is_there(self.path):  # pipes and devices are left alone
            folder = os.path.dirname(path)
            if not self.makes_folder:
                os.stat(folder)
            _probe_folder(folder)


def _probe_folder(path: str) -> None:
    while not _is_there(path):
        path = os.path.dirname(path)
    with tempfile.TemporaryFile(dir=path):
        pass


def _is_there(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def refuse_unwritable(callbacks: Sequence[Any], channel: Channel) -> None:
    """Check the files of callbacks: the chief's, and all workers' if all of them write.

    Every worker raises an error if a worker cannot write a file.
    """
    said = [
        text
        for callback in callbacks
        if channel.is_chief or getattr(callback, "every_worker_writes", False)
        for text in _complaints(callback)
    ]
    found = channel.exchange("files of callbacks", said)
    for worker, texts in enumerate(found):
        if texts:
            where = f" on worker {worker}" if len(found) > 1 else ""
            raise UsageError(
                f"Cannot write the file of a callback{where}: {texts[0]}. Pass a writable path."
            )


@contextlib.contextmanager
def files_noted(callbacks: Sequence[Any]) -> Generator[None]:
    """Add the files of callbacks to an `OSError` that names none, such as of a full disk."""
    try:
        yield
    except OSError as error:
        paths = [repr(one.path) for callback in callbacks for one in _destinations(callback)]
        if error.filename is None and paths:
            error.add_note(f"The callbacks of `fit` write to {', '.join(paths)}.")
        raise


def _complaints(callback: Any) -> Iterator[str]:
    """Which paths of a callback cannot be written, and why."""
    name = type(callback).__name__
    try:
        destinations = list(_destinations(callback))
    except (ValueError, IndexError) as error:  # of a name with a field that is not closed
        yield f"{name} with {callback.filepath!r}: {error}"
        return
    for destination in destinations:
        try:
            if not _compat.is_remote(destination.path):
                destination.probe()
        except (OSError, ValueError) as error:
            yield f"{name} with {destination.path!r}: {getattr(error, 'strerror', None) or error}"


def _destinations(callback: Any) -> Iterator[Destination]:
    kinds = keras.callbacks
    if _compat.saves_as_keras(callback, kinds.ModelCheckpoint):
        yield Destination(_ANY_VALUE.format(callback.filepath))
    elif _compat.saves_as_keras(callback, kinds.BackupAndRestore):
        yield from map(Destination, _compat.backup_paths(callback))
    elif isinstance(callback, kinds.CSVLogger):
        yield Destination(callback.filename, makes_folder=False)
    else:
        of_keras = (a for k, a in _FOLDERS.items() if isinstance(callback, getattr(kinds, k, ())))
        attribute = getattr(callback, "writes_below", None) or next(of_keras, None)
        if attribute is not None:
            yield Destination(os.fspath(getattr(callback, attribute)), is_folder=True)


@final
class _AnyValue(string.Formatter):
    """Puts 0 for each named field, such as `{epoch:02d}` and `{val_loss:.2f}`."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        if field_name[:1].isdigit():  # Keras gives none of these
            return super().get_field(field_name, args, kwargs)
        return 0, field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        return "0"


_ANY_VALUE = _AnyValue()
