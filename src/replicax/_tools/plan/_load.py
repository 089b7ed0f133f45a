"""Loads the target of the command line: a script, a saved model, or a model of Keras by name."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._fit.hooks import install_hooks
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
    if named.endswith(".keras"):
        return subject(_saved(named))
    if named.endswith(".py"):
        return subject(*from_script(named, arguments))
    raise UsageError(
        "What is planned is a Keras model that is compiled. "
        f"Received: {named!r}. Its name does not say where to find it. Name {_FORMS}."
    )


def _saved(path: str) -> Any:
    if not Path(path).is_file():
        raise UsageError(
            "A saved model is a file that `model.save` wrote. "
            f"Received: {path!r}, which is not there. Nothing can be loaded. Check the path."
        )
    install_hooks()  # they note which variable each slot of a built optimizer is for
    return keras.models.load_model(path)


def _application(name: str) -> Any:
    """A model of `keras.applications` with random weights, compiled for 1000 classes."""
    make = getattr(keras.applications, name, None)
    if not callable(make):
        known = [one for one in dir(keras.applications) if one[0].isupper()]
        raise UsageError(
            "A model of `keras.applications` has the name that Keras gives it. "
            f"Received: {name!r}. Keras has no such model. Known are {', '.join(known)}."
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
            "A preset of KerasHub needs KerasHub. "
            f"Received: {preset!r}, and {error}. Replicax does not install it. "
            "Run `pip install keras-hub`."
        ) from error
    return hub.models.Task.from_preset(preset, load_weights=False)
