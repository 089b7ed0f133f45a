"""`TFSMLayer`: a saved model as a layer of another model."""

from __future__ import annotations

from typing import Any, final

import keras

from replicax._core.errors import UsageError
from replicax._function.exporting import SERVING
from replicax._function.importing import load


@final
class TFSMLayer(keras.layers.Layer):
    """A layer that calls a function of a saved model, for inference.

    **Differs from Keras:** it reads only folders that Replicax' `tf.saved_model.save` wrote. Its
    weights are not trained.

    Args:
        filepath: The folder.
        call_endpoint: "serve", or the name of a signature; signatures return a dict.
        call_training_endpoint: The endpoint for training; None for `call_endpoint`.
        trainable: Ignored.
        name: The layer's name.
        dtype: The layer's dtype.
    """

    def __init__(
        self,
        filepath: str,
        call_endpoint: str = "serve",
        call_training_endpoint: str | None = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(trainable=False, name=name, dtype=dtype)
        self.filepath = str(filepath)
        self.call_endpoint = call_endpoint
        self.call_training_endpoint = call_training_endpoint
        self._loaded = load(filepath)
        for variable in self._loaded.variables:
            variable.trainable = False
            self._track_variable(variable)
        self._endpoint(call_endpoint)
        self._endpoint(call_training_endpoint or call_endpoint)
        self.built = True

    def _endpoint(self, name: str) -> Any:
        found = self._loaded.signatures.get(name) or getattr(self._loaded, name, None)
        if not callable(found):
            raise UsageError(
                "A TFSMLayer calls an endpoint of its folder. Received: "
                f"{name!r}, which was not saved. Saved are {sorted(self._loaded.signatures)}. "
                f"Pass `call_endpoint={SERVING!r}`, or another of them."
            )
        return found

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Call the endpoint."""
        other = self.call_training_endpoint if training else None
        return self._endpoint(other or self.call_endpoint)(inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "filepath": self.filepath,
            "call_endpoint": self.call_endpoint,
            "call_training_endpoint": self.call_training_endpoint,
        }
