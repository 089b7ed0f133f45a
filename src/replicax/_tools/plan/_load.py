"""Loads the target of the command line: a script, a saved model, or a model of Keras by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from replicax._core.errors import UsageError, did_you_mean
from replicax._fit.trainer import install_hooks
from replicax._tools.plan._script import from_script
from replicax._tools.plan._subject import Subject, subject

APPLICATIONS, HUB = "keras.applications", "keras_hub"
_FORMS = (
    "a script (train.py), a saved model (model.keras), keras.applications:ResNet50 or "
    "keras_hub:PRESET"
)


def load(named: str, arguments: Sequence[str] = ()) -> Subject:
    """Load the target of a plan.

    It is a script, a `.keras` file, `keras.applications:NAME` or `keras_hub:PRESET`.
    """
    source, _, name = named.partition(":")
    if source == APPLICATIONS:
        return subject(_application(name))
    if source == HUB:
        return subject(_from_hub(name))
    if named.endswith((".keras", ".h5")):
        return subject(_saved(named))
    if named.endswith(".py"):
        return subject(*from_script(named, arguments))
    raise UsageError(f"Cannot plan {named!r}: it must be {_FORMS}.")


def _saved(path: str) -> Any:
    if not Path(path).is_file():
        raise UsageError(f"Cannot plan {path!r}: no such file.")
    install_hooks()  # they note which variable each slot of a built optimizer is for
    try:
        return keras.models.load_model(path)
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot plan {path!r}: {error}") from error


def _application(name: str) -> Any:
    """A model of `keras.applications` with random weights, compiled for 1000 classes."""
    make = getattr(keras.applications, name, None)
    if not callable(make):
        known = [one for one in dir(keras.applications) if one[0].isupper()]
        raise UsageError(
            f"`keras.applications` has no model {name!r}.{did_you_mean(name, known)} Its models "
            f"are {', '.join(known)}."
        )
    model: Any = make(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def _from_hub(preset: str) -> Any:
    """A model of KerasHub without its weights; KerasHub compiles it itself."""
    try:
        hub = importlib.import_module(HUB)
    except ImportError as error:
        raise UsageError(
            f"Cannot load the preset {preset!r}: {error}. Run `pip install keras-hub`."
        ) from error
    return hub.models.Task.from_preset(preset, load_weights=False)
