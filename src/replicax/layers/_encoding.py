"""What a lookup layer makes of tokens: their indices, or numbers for all of an example."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax.layers._texts import as_texts, counted, on_host, one_hot

if TYPE_CHECKING:
    from replicax.layers._vocabulary import Vocabulary


class Encoding:
    """Methods of a layer with a vocabulary."""

    vocabulary: Vocabulary
    vocabulary_dtype: str
    output_mode: str
    max_tokens: int | None
    pad_to_max_tokens: bool
    invert: bool
    name: Any
    token_weights: np.ndarray | None

    def depth(self) -> int:
        """How many numbers there are for an example, where they are not its indices."""
        return (
            self.max_tokens if self.pad_to_max_tokens and self.max_tokens else len(self.vocabulary)
        )

    def ids_of(self, inputs: Any) -> Any:
        """The index of each token; negative for what does not count."""
        if self.vocabulary_dtype == "string":
            return self.vocabulary.texts(as_texts(inputs))
        return self.vocabulary.integers(inputs)

    def call(self, inputs: Any) -> Any:
        """Look tokens up, or with `invert` their indices."""
        if self.invert:
            return on_host(self.vocabulary.tokens_at(np.asarray(inputs)))
        ids = self.ids_of(inputs)
        if self.output_mode == "int":
            return ids if keras.ops.is_tensor(ids) else on_host(ids)
        if keras.ops.is_tensor(ids):
            return self._encoded_on_device(ids)
        if self.output_mode == "one_hot":
            return on_host(one_hot(ids, self.depth()))
        lead, width = ids.shape[:-1], ids.shape[-1] if ids.ndim else 1
        rows = np.arange(int(np.prod(lead, dtype=int))).repeat(width)
        return self.of_counts(counted(ids.reshape(-1), rows, lead, self.depth()))

    def _encoded_on_device(self, ids: Any) -> Any:
        ops: Any = keras.ops
        if self.output_mode == "one_hot":
            squeezed = len(ids.shape) > 1 and ids.shape[-1] == 1
            return ops.one_hot(ids[..., 0] if squeezed else ids, self.depth())
        counts = ops.sum(ops.one_hot(ids, self.depth()), axis=-2)
        return self._weighed(counts)

    def of_counts(self, counts: np.ndarray) -> Any:
        """What the mode makes of how often each token stands in an example.

        Raises:
            UsageError: If there is no vocabulary yet.
        """
        if not self.vocabulary.tokens:
            raise UsageError(
                f"A layer with output_mode={self.output_mode!r} has a vocabulary before it is "
                f"used. Received: layer '{self.name}' without one. How wide the result is, is "
                "not known. Call `adapt(data)`, or pass `vocabulary`."
            )
        return on_host(self._weighed(counts))

    def _weighed(self, counts: Any) -> Any:
        if self.output_mode == "multi_hot":
            return (counts > 0).astype(counts.dtype)
        if self.token_weights is None:
            return counts
        return counts * np.pad(
            self.token_weights, (0, self.depth() - len(self.token_weights))
        ).astype(counts.dtype)

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        shape = tuple(input_shape)
        if self.output_mode == "int":
            return shape
        is_single = self.output_mode == "one_hot" and not (len(shape) > 1 and shape[-1] == 1)
        return (*(shape if is_single else shape[:-1]), self.depth())

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and type of the result."""
        if self.invert:
            kind = self.vocabulary_dtype
        else:
            kind = "int64" if self.output_mode == "int" else keras.config.floatx()
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype=kind)
