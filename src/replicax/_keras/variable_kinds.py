"""How replicas' values of a variable become one: TensorFlow's enums, with Keras' values."""

from __future__ import annotations

from enum import StrEnum


class VariableAggregation(StrEnum):
    """How what replicas write to a variable is combined; Keras' strings are equal to these."""

    NONE = "none"
    SUM = "sum"
    MEAN = "mean"
    ONLY_FIRST_REPLICA = "only_first_replica"


class VariableSynchronization(StrEnum):
    """When replicas' values of a variable are combined; Keras' strings are equal to these."""

    AUTO = "auto"
    NONE = "none"
    ON_WRITE = "on_write"
    ON_READ = "on_read"
