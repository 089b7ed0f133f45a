"""Saving and loading, with the arguments that TensorFlow's had."""

from __future__ import annotations

import os
from typing import Any


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
    options: Any = None,
) -> Any:
    """Load a model that `model.save` wrote: a `.keras` file, a `.h5` file or a folder.

    **Differs from TF:** it does not read what TensorFlow wrote (`saved_model.pb`).

    Args:
        filepath: Where it is.
        custom_objects: Classes and functions by their names.
        compile: Whether to compile it as it was compiled.
        safe_mode: Whether to refuse code in the file.
        options: Accepted for TensorFlow programs: which device reads makes no difference.

    Example:
        >>> import tempfile
        >>> import replicax.tf as tf
        >>> model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        >>> folder = tempfile.mkdtemp() + "/model"
        >>> model.save(folder)
        >>> tf.keras.models.load_model(folder).output_shape
        (None, 1)
    """
    import keras

    import replicax.tf._symbolic  # noqa: F401  # what a model of array functions is made of

    path = os.fspath(filepath)
    if not os.path.exists(path) and os.path.exists(path + ".keras"):
        path += ".keras"  # of a `ModelCheckpoint` whose path had no ending
    return keras.saving.load_model(path, custom_objects, compile, safe_mode)


def save_model(model: Any, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
    """`model.save(filepath, **kwargs)`.

    Args:
        model: A Keras model.
        filepath: See `model.save`: a `.keras` file, a `.h5` file, or a folder.
        **kwargs: As of `model.save`.
    """
    model.save(filepath, **kwargs)
