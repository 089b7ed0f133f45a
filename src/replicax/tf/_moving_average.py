"""`tf.train.ExponentialMovingAverage`: averages of variables over the steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp

import replicax as rx


@final
class ExponentialMovingAverage:
    """Keeps a moving average of variables, each in a variable of its own.

    **Differs from TF:** `zero_debias` says nothing: there as well it is of tensors of graphs only.

    Example:
        >>> import replicax.tf as tf
        >>> v, ema = tf.Variable(0.0), tf.train.ExponentialMovingAverage(0.75)
        >>> ema.apply([v])
        >>> _ = v.assign(4.0)
        >>> ema.apply([v])
        >>> float(ema.average(v).numpy())
        1.0
    """

    def __init__(
        self,
        decay: Any,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self.name = name
        self._decay, self._num_updates = decay, num_updates
        self._averages: dict[int, tuple[Any, Any]] = {}

    def apply(self, var_list: Sequence[Any]) -> None:
        """Let the averages follow; those of new variables begin with their values."""
        decay = jnp.asarray(self._decay, "float32")
        if self._num_updates is not None:
            count = jnp.asarray(self._num_updates).astype("float32")
            decay = jnp.minimum(decay, (1 + count) / (10 + count))
        for variable in var_list:
            average = self._average_of(variable)
            rest = (1 - decay).astype(average.dtype)
            average.assign_sub((average - jnp.asarray(variable, average.dtype)) * rest)

    def _average_of(self, variable: Any) -> Any:
        if id(variable) not in self._averages:
            made = rx.Variable(
                lambda: jnp.array(variable),
                trainable=False,
                name=self.average_name(variable).replace("/", "_"),
                aggregation=rx.VariableAggregation.MEAN,
            )
            self._averages[id(variable)] = variable, made
        return self._averages[id(variable)][1]

    def average(self, var: Any) -> Any:
        """The variable that holds the average; None before `apply`."""
        return self._averages.get(id(var), (None, None))[1]

    def average_name(self, var: Any) -> str:
        """What the average is called."""
        return f"{var.path}/{self.name}"

    def variables_to_restore(self, moving_avg_variables: Any = None) -> dict[str, Any]:
        """Where to load averages into: the variables themselves, by the names of the averages."""
        known = [variable for variable, _ in self._averages.values()]
        chosen = known if moving_avg_variables is None else moving_avg_variables
        return {self.average_name(variable): variable for variable in chosen}
