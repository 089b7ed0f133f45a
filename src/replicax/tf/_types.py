"""`tf.types.experimental`: what annotations name, and types by which a function is traced."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._function.function import StatefulFunction

TensorLike = jax.Array | np.ndarray | np.generic | int | float | complex | bool | str | bytes | list
Callable = GenericFunction = PolymorphicFunction = StatefulFunction
FunctionType = inspect.Signature


class TraceType(ABC, Hashable):
    """The common type of two arguments that share a program of a `tf.function`.

    **Differs from TF:** arguments share one if their types are equal. A type holds no tensors, and
    the function is traced with the first argument itself.

    Raises:
        UsageError: If a subclass says which tensors it consists of.

    Example:
        >>> from dataclasses import dataclass
        >>> import replicax.tf as tf
        >>> @dataclass(frozen=True)
        ... class Kind(tf.types.experimental.TraceType):
        ...     of: type
        ...     def is_subtype_of(self, other):
        ...         return self == other
        ...     def most_specific_common_supertype(self, others):
        ...         return self if {self, *others} == {self} else None
        ...     def placeholder_value(self, placeholder_context=None):
        ...         return self.of()
        >>> class Fruit:
        ...     flavor = 2.0
        ...     def __tf_tracing_type__(self, context):
        ...         return Kind(Fruit)
        >>> taste = tf.function(lambda fruit: fruit.flavor * tf.constant(3.0))
        >>> [float(taste(Fruit())) for _ in range(2)], taste.experimental_get_tracing_count()
        ([6.0, 6.0], 1)
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        told = [name for name in ("to_tensors", "_to_tensors", "flatten") if name in vars(cls)]
        if told:
            raise UsageError(
                f"{cls.__name__} defines {told}, which a TraceType here does not use: arrays of "
                "an object would be constants of the program. Pass the arrays as arguments of "
                "the function."
            )

    @abstractmethod
    def is_subtype_of(self, other: TraceType) -> bool:
        """Whether this is a subtype of the other."""

    @abstractmethod
    def most_specific_common_supertype(self, others: Sequence[TraceType]) -> TraceType | None:
        """The type of which this and the others are subtypes."""

    @abstractmethod
    def placeholder_value(self, placeholder_context: Any = None) -> Any:
        """The value with which the function is traced."""

    @abstractmethod
    def __eq__(self, other: object) -> bool: ...

    @abstractmethod
    def __hash__(self) -> int: ...


@runtime_checkable
class SupportsTracingProtocol(Protocol):
    """An object that says by which type functions of it are traced."""

    def __tf_tracing_type__(self, context: Any) -> TraceType: ...
