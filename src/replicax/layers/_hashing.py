"""`Hashing`, `HashedCrossing` and `Discretization`: bins of text and numbers."""

from __future__ import annotations

from typing import Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.tables.initial_rows import hash_ids
from replicax.layers._text_models import HostLayer
from replicax.layers._vocabulary import (
    as_texts,
    batches_of,
    check_mode,
    is_text,
    on_host,
    one_hot,
)


@final
@keras.saving.register_keras_serializable(package="replicax")
class Hashing(HostLayer):
    """Hashes text and integers to bins on the host, like `keras.layers.Hashing`.

    Keras' layer needs TensorFlow.

    **Differs from Keras:** the hash function is `rx.layers.hash_ids`, so the bins differ.

    Args:
        num_bins: The number of bins.
        mask_value: The input that gets bin 0; no other input gets it.
        salt: Selects another hash function.
        output_mode: "int", "one_hot", "multi_hot" or "count".
        sparse: Not supported.
        name: The name of the layer.
        **kwargs: Keyword arguments of `keras.layers.Layer`; `dtype` has no effect.

    Raises:
        UsageError: If the arguments contradict each other.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.Hashing(3)
        >>> layer(["a", "b", "a"]).shape
        (3,)
    """

    def __init__(
        self,
        num_bins: int,
        mask_value: Any = None,
        salt: Any = None,
        output_mode: str = "int",
        sparse: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, kwargs)
        self.num_bins, self.mask_value, self.salt = num_bins, mask_value, salt
        self.output_mode = check_mode(output_mode, sparse)
        if self.output_mode == "tf_idf":
            raise UsageError.of(
                "output_mode", "'int', 'one_hot', 'multi_hot' or 'count' in `Hashing`", output_mode
            )
        if num_bins <= (mask_value is not None):
            raise UsageError.of(
                "num_bins",
                f"at least {1 + (mask_value is not None)} with mask_value={mask_value!r}",
                num_bins,
            )

    def depth(self) -> int:
        """The number of bins."""
        return self.num_bins

    def call(self, inputs: Any) -> Any:
        """Hash text or integers."""
        keys = as_texts(inputs) if is_text(inputs) else np.asarray(inputs)
        salted = keys if self.salt is None else _salted(keys, self.salt)
        masks = int(self.mask_value is not None)
        ids = hash_ids(salted, self.num_bins - masks) + masks
        if masks:
            ids = np.where(keys == self.mask_value, 0, ids)
        if self.output_mode == "int":
            return on_host(ids)
        if self.output_mode == "one_hot":
            return on_host(one_hot(ids, self.num_bins))
        counts = self.counts_of(ids)
        return on_host(np.minimum(counts, 1) if self.output_mode == "multi_hot" else counts)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "mask_value": self.mask_value,
            "salt": self.salt,
            "output_mode": self.output_mode,
        }


def _salted(keys: np.ndarray, salt: Any) -> np.ndarray:
    prefixed = [f"{salt}\x1f{key}" for key in keys.ravel().tolist()]
    return np.array(prefixed, dtype=object).reshape(keys.shape)


@final
@keras.saving.register_keras_serializable(package="replicax")
class HashedCrossing(HostLayer):
    """Hashes pairs of texts or integers to bins, like `keras.layers.HashedCrossing`.

    Keras' layer needs TensorFlow.

    **Differs from Keras:** the hash function is `rx.layers.hash_ids`, so the bins differ.

    Args:
        num_bins: The number of bins.
        output_mode: "int" or "one_hot".
        sparse: Not supported.
        name: The name of the layer.
        **kwargs: Keyword arguments of `keras.layers.Layer`; `dtype` has no effect.

    Raises:
        UsageError: If the output mode is unknown.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.HashedCrossing(5)
        >>> layer((["a", "b"], [1, 1])).shape
        (2,)
    """

    def __init__(
        self,
        num_bins: int,
        output_mode: str = "int",
        sparse: bool = False,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, kwargs)
        self.num_bins = num_bins
        self._hash = Hashing(num_bins, output_mode=output_mode, sparse=sparse)

    def call(self, inputs: Any) -> Any:
        """Hash the elements at the same position of all inputs together."""
        columns = [as_texts(column) for column in inputs]
        pairs = ["\x1f".join(pair) for pair in zip(*(c.ravel() for c in columns), strict=True)]
        return self._hash(np.array(pairs, dtype=object).reshape(columns[0].shape))

    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """The shape of the result."""
        return self._hash.compute_output_shape(input_shape[0])

    def compute_output_spec(self, inputs: Any) -> Any:
        """The shape and dtype of the result."""
        return self._hash.compute_output_spec(inputs[0])

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "num_bins": self.num_bins,
            "output_mode": self._hash.output_mode,
        }


@final
@keras.saving.register_keras_serializable(package="replicax")
class Discretization(keras.layers.Discretization):
    """`keras.layers.Discretization` with an `adapt` that does not need TensorFlow.

    Example:
        >>> import replicax as rx
        >>> layer = rx.layers.Discretization(num_bins=2)
        >>> layer.adapt([[1.0], [2.0], [3.0], [10.0]])
        >>> layer([[1.5], [9.0]]).tolist()
        [[0], [1]]
    """

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Learn bins that hold equally many values.

        Args:
            data: An array or a list, or a data set of batches.
            steps: The number of batches to read; None for all.
        """
        self.reset_state()
        for batch in batches_of(data, steps):
            self.update_state(np.asarray(batch))
        self.finalize_state()
