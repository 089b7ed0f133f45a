"""`Discretization`: the bin of each number."""

from __future__ import annotations

from typing import Any, final

import keras
import numpy as np

from replicax.layers._vocabulary import batches_of


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
