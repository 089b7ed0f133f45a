"""The contents of a checkpoint by name, without the objects that it was made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import final

import numpy as np

from replicax._core.errors import UsageError, checks_types, did_you_mean
from replicax.train import _files
from replicax.train._bundle import Bundle, is_bundle
from replicax.train._manager import latest_checkpoint
from replicax.train._parts import VALUE
from replicax.train._restored import all_saved

_COUNTER = f"save_counter{VALUE}"


@checks_types
def list_variables(ckpt_dir_or_file: str | os.PathLike[str]) -> list[tuple[str, list[int]]]:
    """Name and shape of every variable in a checkpoint.

    A name is made of attributes, as in TensorFlow. **Differs from TF:** Keras' models have the
    names that Keras 2 gave them, `"layer_with_weights-0/kernel"`; states of iterators are no
    variables.

    Args:
        ckpt_dir_or_file: Its path, or a folder of checkpoints: the latest of them.

    Raises:
        CheckpointError: If there is no whole checkpoint.

    Example:
        >>> import tempfile, keras
        >>> import replicax as rx
        >>> total = keras.Variable([1.0, 2.0], name="total")
        >>> path = rx.train.Checkpoint(sums=total).write(f"{tempfile.mkdtemp()}/here")
        >>> rx.train.list_variables(path)[1]
        ('sums/.ATTRIBUTES/VARIABLE_VALUE', [2])
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


@checks_types
def load_variable(ckpt_dir_or_file: str | os.PathLike[str], name: str) -> np.ndarray:
    """The value of one variable in a checkpoint.

    Args:
        ckpt_dir_or_file: Its path, or a folder of checkpoints: the latest of them.
        name: Its name, as `list_variables` says.

    Raises:
        CheckpointError: If there is no whole checkpoint.
        UsageError: If it has no variable of this name.
    """
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name)


@checks_types
def load_checkpoint(ckpt_dir_or_file: str | os.PathLike[str]) -> CheckpointReader:
    """Open a checkpoint, or the latest of a folder; see `CheckpointReader`."""
    path = os.fspath(ckpt_dir_or_file)
    is_one = _files.located(path) or is_bundle(path)
    return CheckpointReader(path if is_one else latest_checkpoint(path) or path)


@final
@checks_types
class CheckpointReader:
    """The variables of a checkpoint by name, of ours or of TensorFlow's.

    Args:
        path: The checkpoint; of TensorFlow's, the path without `.index`.

    Raises:
        CheckpointError: If there is none, or it is damaged; a value is checked when it is read.
        UsageError: If it is one of TensorFlow's and google-crc32c is missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path = os.fspath(path)
        if is_bundle(path) and not _files.is_there(path):
            bundle = Bundle(path)
            self._read: Callable[[str], np.ndarray] = bundle.read
            self._kinds = {
                name: (list(entry.shape), entry.dtype) for name, entry in bundle.entries.items()
            }
            return
        content = _files.opened(path)
        keys = _keys(content)
        counter = np.asarray(content.body["save_counter"], np.int64)
        arrays = content.arrays
        arrays.open_all()
        self._read = lambda name: arrays[keys[name]] if name in keys else counter
        kinds = {name: arrays.kind(key) for name, key in keys.items()}
        kinds[_COUNTER] = counter.shape, counter.dtype
        self._kinds = {name: (list(shape), dtype) for name, (shape, dtype) in kinds.items()}

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes by name."""
        return {name: shape for name, (shape, _) in self._kinds.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """The types by name; text is `object`."""
        return {name: dtype for name, (_, dtype) in self._kinds.items()}

    def has_tensor(self, name: str) -> bool:
        """Whether there is a variable of this name."""
        return name in self._kinds

    def get_tensor(self, name: str) -> np.ndarray:
        """A value.

        Raises:
            CheckpointError: If the file has other bytes than were written.
            UsageError: If there is no variable of this name.
        """
        if name not in self._kinds:
            raise UsageError(
                f"The checkpoint has no variable {name!r}.{did_you_mean(name, self._kinds)} It has "
                f"{sorted(self._kinds)}."
            )
        return self._read(name)


def _keys(content: _files.Content) -> dict[str, str]:
    """The arrays' own names by TensorFlow's; a variable that no attribute holds has its path."""
    keys: dict[str, str] = {}
    names = {key: full + VALUE for full, key, _ in all_saved(content.body["parts"])}
    for part, saved in content.body["parts"].items():
        for index, entry in enumerate(saved.get("variables") or ()):
            key = f"{part}:{index}"
            name = names.get(key, f"{part}/{entry['path']}")
            keys[f"{name}#{index}" if name in keys or name == _COUNTER else name] = key
    return keys
