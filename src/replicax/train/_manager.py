"""`CheckpointManager`: a folder of numbered checkpoints; and the checkpoints of another process."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import CheckpointError, UsageError, checks_types
from replicax.train import _files
from replicax.train._bundle import bundles
from replicax.train._checkpoint import Checkpoint

if TYPE_CHECKING:
    from replicax.train._status import CheckpointOptions


_log = logging.getLogger("replicax")


@final
@checks_types
class CheckpointManager:
    """Numbers checkpoints, keeps the last few, and finds the latest.

    **Differs from TF:** there is no file beside the checkpoints that says which is the latest:
    it is the one with the highest number. All workers call the same methods.

    Args:
        checkpoint: What is saved and restored.
        directory: The folder; it is made when it is needed.
        max_to_keep: How many stay; None for all.
        keep_checkpoint_every_n_hours: Of older ones, keep the oldest and those this far apart.
        checkpoint_name: What comes before the number.
        step_counter: A variable, or an `rx.train.Value`, that counts steps.
        checkpoint_interval: The least number of its steps between two checkpoints; `save` does
            nothing sooner.
        init_fn: Called by `restore_or_initialize` if there is nothing to restore.
        asynchronous: Let a thread write; see `Checkpoint.write`.

    Raises:
        UsageError: If `checkpoint` is another object, `max_to_keep` is not positive, or an interval
            has no counter.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> step = rx.train.Value(7)
        >>> directory = tempfile.mkdtemp()
        >>> manager = rx.train.CheckpointManager(rx.train.Checkpoint(step=step), directory)
        >>> path = manager.save()
        >>> manager.latest_checkpoint == path
        True
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
        *,
        asynchronous: bool = False,
    ) -> None:
        if not isinstance(checkpoint, Checkpoint):
            raise UsageError.of(
                "checkpoint", "a `Checkpoint`", checkpoint, "Write `Checkpoint(model=model)`."
            )
        if max_to_keep is not None and max_to_keep < 1:
            raise UsageError.of(
                "max_to_keep", "at least 1", max_to_keep, "Pass None to keep all checkpoints."
            )
        if checkpoint_interval is not None and step_counter is None:
            raise UsageError(
                f"`checkpoint_interval={checkpoint_interval}` needs a `step_counter`. Pass the "
                "variable that counts the steps, such as `optimizer.iterations`."
            )
        self.checkpoint = checkpoint
        self.directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._name = checkpoint_name
        self._hours = keep_checkpoint_every_n_hours
        self._steps, self._interval = step_counter, checkpoint_interval
        self._saved_at: int | None = None
        self._init_fn = init_fn
        self._asynchronous = asynchronous

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints in the folder, oldest first."""
        return [path for _, path in _numbered(self.directory, self._name)]

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the checkpoint with the highest number, or None."""
        return latest_checkpoint(self.directory, self._name)

    @property
    def checkpoint_interval(self) -> int | None:
        """The least number of steps between two checkpoints."""
        return self._interval

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save, and remove the oldest beyond `max_to_keep`.

        Args:
            checkpoint_number: Its number, such as the step; by default one more than the last.
            check_interval: Whether `checkpoint_interval` counts.
            options: See `Checkpoint.write`.

        Returns:
            The path; None if it is too early for another.

        Raises:
            OSError: On all workers, if the chief could not write.
            UsageError: If there is a checkpoint of a higher number.
        """
        self.wait()
        if self._interval is not None:
            step = int(getattr(self._steps, "value", self._steps))
            early = self._saved_at is not None and step - self._saved_at < self._interval
            if check_interval and early:
                return None
            self._saved_at = step
        number = self._number(None if checkpoint_number is None else int(checkpoint_number))
        self.checkpoint.count()
        path = os.path.join(self.directory, f"{self._name}-{number}")

        def then() -> None:
            self.checkpoint.saved(path)
            self._remove_old()

        return self.checkpoint.write(path, options, asynchronous=self._asynchronous, then=then)

    def _number(self, wanted: int | None) -> int:
        # The chief's folder decides: another worker may see no folder, or an old listing.
        there = [number for number, _ in _numbered(self.directory, self._name)]
        there += [number for number, _ in _bundles(self.directory, self._name)]
        payload = json.dumps(max(there, default=0)).encode()
        highest = json.loads(self.checkpoint.channel.from_chief("checkpoint number", payload))
        if wanted is not None and wanted < highest:
            raise UsageError.of(
                "checkpoint_number",
                f"at least {highest}, the highest number in the folder",
                wanted,
                "Remove the newer checkpoints, or save to another folder.",
            )
        return highest + 1 if wanted is None else wanted

    def _remove_old(self) -> None:
        if self._max_to_keep is not None:
            kept = -math.inf
            for path in self.checkpoints[: -self._max_to_keep]:
                written = _files.written_at(path)
                if self._hours is not None and written - kept >= 3600 * self._hours:
                    kept = written
                else:
                    _files.remove(path)

    def restore_or_initialize(self) -> str | None:
        """Restore the latest checkpoint that is whole; without any, call `init_fn`.

        A damaged one is passed over, and a warning names it.

        Returns:
            Its path, or None.

        Raises:
            CheckpointError: If there are checkpoints, but all of them are damaged.
        """
        self.wait()
        ours = _numbered(self.directory, self._name, _files.is_there)
        both = _bundles(self.directory, self._name) + ours
        # `sorted` is stable, so our checkpoint comes last among equal numbers.
        there = [path for _, path in sorted(both, key=itemgetter(0))]
        payload = json.dumps(there).encode()
        paths = json.loads(self.checkpoint.channel.from_chief("checkpoints", payload))
        for path in reversed(paths):
            try:
                self.checkpoint.restore(path)
            except CheckpointError as error:
                if path == paths[0]:
                    raise
                _log.warning("%s The checkpoint before it is tried next.", error)
            else:
                return path
        if self._init_fn is not None:
            self._init_fn()
        return None

    def wait(self) -> None:
        """Wait until what is written asynchronously is on disk; see `Checkpoint.wait`."""
        self.checkpoint.wait()

    sync = wait


@checks_types
def latest_checkpoint(directory: str | os.PathLike[str], name: str | None = None) -> str | None:
    """The path of the whole checkpoint with the highest number in a folder, or None.

    A warning names a damaged one of a higher number. Of TensorFlow's checkpoints there the latest
    counts, as their file `checkpoint` says.

    Args:
        directory: The folder.
        name: What comes before the number; by default anything.

    Example:
        >>> import replicax as rx
        >>> rx.train.latest_checkpoint("/nowhere") is None
        True
    """
    theirs = _bundles(os.fspath(directory), name)[-1:]
    for number, path in reversed(_numbered(os.fspath(directory), name, _files.is_there)):
        if theirs and theirs[0][0] > number:
            break
        if _is_whole(path):
            return path
        _log.warning("The checkpoint %s is damaged; an older one is taken.", path)
    return theirs[0][1] if theirs else None


@checks_types
def all_checkpoints(directory: str | os.PathLike[str]) -> list[str]:
    """The paths of the whole checkpoints in a folder, by number.

    Args:
        directory: The folder.
    """
    directory = os.fspath(directory)
    return [path for _, path in _numbered(directory, None)] or bundles(directory)


def _bundles(directory: str, name: str | None) -> list[tuple[int, str]]:
    """Number and prefix of TensorFlow's checkpoints in a folder, the latest last."""
    found = []
    for path in bundles(directory):
        stem = os.path.basename(path)
        match = re.fullmatch(r"(.+)-(\d+)", stem)
        if name is None or name == (match[1] if match else stem):
            found.append((int(match[2]) if match else 0, path))
    return found


def _is_whole(path: str) -> bool:
    return _files.located(path) is not None


def _numbered(
    directory: str, name: str | None, counts: Callable[[str], bool] = _is_whole
) -> list[tuple[int, str]]:
    """Number and path of a folder's checkpoints in order; by default only complete ones."""
    found = set()
    for entry in _files.names_in(directory):
        match = re.fullmatch(r"\.?(.+?)-(\d+)(\.replaced)?", entry)
        if match and (name is None or match[1] == name):
            path = os.path.join(directory, f"{match[1]}-{match[2]}")
            if counts(path):
                found.add((int(match[2]), path))
    return sorted(found)


_POLL = 0.2  # seconds between two looks at the folder


def checkpoints_iterator(
    checkpoint_dir: str | os.PathLike[str],
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """Yield the latest checkpoint of a folder whenever there is a new one.

    Args:
        checkpoint_dir: The folder; it may not be there yet.
        min_interval_secs: The least time between two of them.
        timeout: How many seconds to wait for another one; None for ever.
        timeout_fn: Called after that time: whether to end. By default it ends.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> folder = tempfile.mkdtemp()
        >>> path = rx.train.Checkpoint(step=rx.train.Value(3)).save(f"{folder}/ckpt")
        >>> list(rx.train.checkpoints_iterator(folder, timeout=0)) == [path]
        True
    """
    seen = None
    while True:
        path = _next(checkpoint_dir, seen, timeout)
        if path is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        seen, started = (path, _files.identity(path)), time.monotonic()
        yield path
        time.sleep(max(0.0, started + min_interval_secs - time.monotonic()))


def _next(
    directory: str | os.PathLike[str], seen: tuple[str, str | None] | None, timeout: float | None
) -> str | None:
    """The latest checkpoint once it differs from the given one; None after the time-out."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        path = latest_checkpoint(directory)
        if path is not None and (path, _files.identity(path)) != seen:
            return path
        if end is not None and time.monotonic() >= end:
            return None
        time.sleep(_POLL)
