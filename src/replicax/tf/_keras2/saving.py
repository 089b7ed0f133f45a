"""Models saved as folders, as Keras 2 saved them: with what they compute, and what they are.

`tf.saved_model.load` and `load_model` read such a folder. `spellings.py` puts it in.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._core.folder import NewFolder, named
from replicax._function import exporting
from replicax._keras import _compat

logger = logging.getLogger("replicax")

_WRITTEN = {"config.json", exporting.MANIFEST}


def saved_also_to_folders(
    original: Callable[..., Any],
    self: Any,
    /,
    filepath: Any,
    overwrite: bool = True,
    zipped: Any = None,
    **kwargs: Any,
) -> Any:
    """The `save` of models, with paths that have no ending."""
    kwargs.pop("options", None)  # which device writes
    kind = kwargs.pop("save_format", None)
    path = os.fspath(filepath)
    if not _is_file(path):
        # The format decides where the path does not; without one it becomes a folder.
        path += {"h5": ".h5", "keras": ".keras"}.get(kind, "")
    kwargs.pop("save_traces", None)  # what a model computes is always in a folder
    signatures = kwargs.pop("signatures", None)
    if zipped is not None or _is_file(path):
        if signatures is not None:
            raise UsageError(
                f"Cannot save signatures to {path!r}: a file of a Keras model has none. Pass "
                "a folder's path, without an ending, or use `tf.saved_model.save`."
            )
        with named(path):
            return original(self, path, overwrite=overwrite, zipped=zipped, **kwargs)
    save_config = functools.partial(original, self, **kwargs)
    return _save_to_folder(self, save_config, path.rstrip("/"), signatures)


def _is_file(path: str) -> bool:
    return path.endswith((".keras", ".h5", ".hdf5")) or path.startswith("hf://")


def _save_to_folder(model: Any, save: Callable[..., Any], path: str, signatures: Any) -> None:
    """Save a model as a folder, in place of one that was saved there."""
    _check_is_built(model)
    with NewFolder(path, _WRITTEN) as new:
        try:
            exporting.save(model, str(new), signatures)
        except Exception as error:
            if signatures is not None:
                raise
            logger.warning(
                "The folder %s is for `load_model`, not for `tf.saved_model.load`: %s", path, error
            )
        save(str(new), zipped=False)


def _check_is_built(model: Any) -> None:
    if not model.built:
        raise UsageError(
            f"Cannot save {model.name!r}: it is not built. Call it once, `model(example)`, or "
            "give it an `Input`."
        )


def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: dict[str, Any] | None = None,
    compile: bool = True,
    safe_mode: bool = True,
    options: Any = None,
) -> Any:
    """Load a model that `model.save` wrote: a `.keras` file, a `.h5` file or a folder.

    **Differs from TF:** it does not read what TensorFlow wrote (`saved_model.pb`). `options` have
    no effect.

    Example:
        >>> import tempfile
        >>> import replicax.tf as tf
        >>> model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        >>> folder = tempfile.mkdtemp() + "/model"
        >>> model.save(folder)
        >>> tf.keras.models.load_model(folder).output_shape
        (None, 1)
    """
    import replicax.tf._symbolic  # noqa: F401  # what a model of array functions is made of

    path = os.fspath(filepath)
    if not os.path.exists(path) and os.path.exists(path + ".keras"):
        path += ".keras"  # of a `ModelCheckpoint` whose path had no ending
    return keras.saving.load_model(path, custom_objects, compile, safe_mode)


def save_model(model: Any, filepath: str | os.PathLike[str], **kwargs: Any) -> None:
    """`model.save(filepath, **kwargs)`."""
    model.save(filepath, **kwargs)


def is_older_weights_file(path: str) -> bool:
    """Whether a name is one of a file of weights for Keras 2, and none for Keras 3."""
    return path.endswith((".h5", ".hdf5")) and not path.endswith(".weights.h5")


def save_older_weights(model: Any, path: str, overwrite: bool = True) -> None:
    """Save weights by layers, as Keras 2 did."""
    _check_is_built(model)
    _compat.save_weights_by_layers(model, path, overwrite=overwrite)


def save_spec(self: Any, dynamic_batch: bool = True) -> Any:
    """The specs of the model's arguments, by default for any batch size; None if unknown."""
    from replicax.data._spec import ArraySpec  # with it come all pipelines

    try:
        specs = _compat.call_specs(self)
    except ValueError:
        return None

    def spec_of(one: Any) -> Any:
        is_open = dynamic_batch and one.shape
        return ArraySpec((None, *one.shape[1:]) if is_open else one.shape, one.dtype)

    return tuple(keras.tree.map_structure(spec_of, spec) for spec in specs), {}
