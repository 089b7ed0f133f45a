"""What a checkpoint holds, by name, without the objects that it was made of."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, final

from replicax._core.errors import UsageError
from replicax.train import _files
from replicax.train._manager import latest_checkpoint

if TYPE_CHECKING:
    import numpy as np


def list_variables(checkpoint: str | os.PathLike[str]) -> list[tuple[str, list[int]]]:
    """Name and shape of every variable in a checkpoint.

    **Differs from TF:** a name is that of the object and the variable's path, such as
    `"model/sequential/dense/kernel"`.

    Args:
        checkpoint: Its path, or a folder of checkpoints: the latest of them.

    Raises:
        CheckpointError: If there is no whole checkpoint.

    Example:
        >>> import tempfile, keras
        >>> import replicax as rx
        >>> total = keras.Variable([1.0, 2.0], name="total")
        >>> path = rx.train.Checkpoint(sums=total).write(f"{tempfile.mkdtemp()}/here")
        >>> rx.train.list_variables(path)
        [('sums/total', [2])]
    """
    return sorted(load_checkpoint(checkpoint).get_variable_to_shape_map().items())


def load_variable(checkpoint: str | os.PathLike[str], name: str) -> np.ndarray:
    """The value of one variable in a checkpoint.

    Args:
        checkpoint: Its path, or a folder of checkpoints: the latest of them.
        name: Its name, as `list_variables` says.

    Raises:
        CheckpointError: If there is no whole checkpoint.
        UsageError: If it has no variable of this name.
    """
    return load_checkpoint(checkpoint).get_tensor(name)


def load_checkpoint(checkpoint: str | os.PathLike[str]) -> CheckpointReader:
    """Open a checkpoint, or the latest of a folder; see `CheckpointReader`."""
    path = os.fspath(checkpoint)
    return CheckpointReader(path if _files.located(path) else latest_checkpoint(path) or path)


@final
class CheckpointReader:
    """The variables of a checkpoint by name.

    Args:
        path: The checkpoint.

    Raises:
        CheckpointError: If there is none, or it is damaged.
    """

    def __init__(self, path: str) -> None:
        content = _files.read(path)
        self._arrays: dict[str, np.ndarray] = {}
        for part, saved in content.body["parts"].items():
            for index, entry in enumerate(saved.get("variables") or ()):
                name = f"{part}/{entry['path']}"
                name = f"{name}#{index}" if name in self._arrays else name
                self._arrays[name] = content.arrays[f"{part}:{index}"]

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes by name."""
        return {name: list(array.shape) for name, array in self._arrays.items()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype]:
        """The types by name."""
        return {name: array.dtype for name, array in self._arrays.items()}

    def has_tensor(self, name: str) -> bool:
        """Whether there is a variable of this name."""
        return name in self._arrays

    def get_tensor(self, name: str) -> np.ndarray:
        """A value.

        Raises:
            UsageError: If there is no variable of this name.
        """
        if name not in self._arrays:
            raise UsageError(
                "A variable in a checkpoint has the name that `list_variables` says. Received: "
                f"{name!r}; the checkpoint has {sorted(self._arrays)}. There is no value of this "
                "name. Use one of them."
            )
        return self._arrays[name]
