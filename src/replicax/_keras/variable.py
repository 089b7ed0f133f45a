"""`Variable`: a `keras.Variable` that is made, sliced and assigned as TensorFlow's are."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer

from replicax._core import seams
from replicax._core.context import current_frame
from replicax._core.errors import UsageError, checks_types
from replicax._core.options import VariableAggregation, VariableSynchronization
from replicax._core.tracing import current_reader
from replicax._keras import _compat
from replicax._keras.variable_methods import VariableMethods, of_kind
from replicax._program.capture import CaptureScope, DeferredInitializer


class _AnyVariable(type):
    """Makes every Keras variable an instance, such as the variables of layers."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _compat.KerasVariable)


@final
class Variable(VariableMethods, keras.Variable, metaclass=_AnyVariable):
    """A value that is kept from step to step.

    It is a `keras.Variable`, and every Keras variable is an instance of this class. Made in
    `strategy.scope()` it belongs to the strategy. In a compiled function it may be made on the
    first call: `if self.v is None: self.v = Variable(0.0)`.

    **Differs from TF:** `value` is an attribute, as in Keras: write `v.value` or `v.read_value()`
    for `v.value()`. 64-bit types are 32 bits wide on JAX unless `jax_enable_x64` is set. There are
    no variables of text, nor of shapes that change.

    Args:
        initial_value: A number, an array, or a function without arguments that returns one.
        trainable: Whether it is trained; None: unless it is synchronized on read.
        validate_shape: Ignored, as are the arguments that are not listed here.
        name: Its name.
        dtype: Its type; None for that of the value.
        constraint: A function that an optimizer applies after each update.
        synchronization: When replicas' values are combined.
        aggregation: How what replicas write is combined.
        shape: Its shape, where the value is one number, or a Keras initializer; with sizes that
            are None it is the value's.

    Raises:
        UsageError: If the value is text, is made by the function being traced, or does not fit.

    Example:
        >>> import replicax as rx
        >>> v = rx.Variable([1.0, 2.0, 3.0])
        >>> v[1:].assign([5.0, 6.0]).numpy().tolist()
        [1.0, 5.0, 6.0]
        >>> float(v.assign_add([1.0, 1.0, 1.0])[0])
        2.0
    """

    @checks_types
    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: Any = None,
        import_scope: str | None = None,
        constraint: Callable[[Any], Any] | None = None,
        synchronization: str = VariableSynchronization.AUTO,
        aggregation: str | None = VariableAggregation.NONE,
        shape: Sequence[int] | None = None,
        experimental_enable_variable_lifting: bool = True,
    ) -> None:
        if initial_value is None:
            raise UsageError(
                "`initial_value` of a variable must not be None. Pass a number, an array or a "
                "function that makes one."
            )
        if trainable is None:
            trainable = synchronization != VariableSynchronization.ON_READ
        initial, shape, kind = _initial(initial_value, shape, dtype)
        if synchronization == VariableSynchronization.ON_READ and aggregation == "sum":
            initial = _summed_over_replicas(initial)
        outer, _, own = (name or "Variable").rpartition("/")
        super().__init__(
            initial,
            shape=shape,
            dtype=kind,
            trainable=trainable,
            autocast=False,
            aggregation=aggregation,
            synchronization=synchronization,
            name=own.split(":")[0],
        )
        if outer:
            _compat.set_path(self, f"{outer}/{self.path}")
        self.constraint = constraint


def _summed_over_replicas(initial: Any) -> Any:
    """The initial value, or initializer, of the sum of all replicas' values."""
    frame = current_frame()
    count = frame.strategy.num_replicas_in_sync if frame else 1
    if count == 1:
        return initial
    if callable(initial):
        return lambda shape, dtype: initial(shape, dtype) * count
    return initial * count


def _initial(value: Any, shape: Any, dtype: Any) -> tuple[Any, Any, str]:
    """The arguments of a Keras variable: an initial value or initializer, a shape, a dtype."""
    wanted = None if dtype is None else np.dtype(getattr(dtype, "as_numpy_dtype", dtype))
    sizes: Any = None  # a shape in which some sizes are None
    if getattr(shape, "rank", 0) is None:
        shape = None
    elif isinstance(shape, Sequence) and None in shape:
        sizes, shape = shape, None
    try:
        shape = None if shape is None else tuple(map(operator.index, shape))
    except TypeError as error:
        raise UsageError.of("shape", "a list of integers", shape) from error
    traced = _compat.get_stateless_scope() is not None
    if isinstance(value, keras.initializers.Initializer) and shape is not None:
        return value, shape, _stored(wanted or np.dtype("float32"))
    make: Any = value
    if callable(value) and not traced:
        value = make()
    elif callable(value):  # called after the trace
        with CaptureScope(finds=True):
            made = jax.eval_shape(lambda: jnp.asarray(make()))
        kind = _stored(wanted or made.dtype)
        return (lambda shape, dtype: jnp.asarray(make(), dtype)), made.shape, kind
    scope, reader = _compat.get_stateless_scope(), current_reader()
    if isinstance(value, Tracer) and reader is not None:
        reader.begin("makes a variable from a value that it computes")
    if isinstance(value, Tracer) and isinstance(scope, CaptureScope) and scope.is_of_capture:
        kind = _stored(wanted or value.dtype)
        whole = value if shape is None or value.shape == shape else jnp.broadcast_to(value, shape)
        scope.initializers.append(DeferredInitializer(whole))
        return scope.initializers[-1], tuple(whole.shape), kind
    host = _on_host(value)
    kind = _stored(wanted or host.dtype)
    of_kind(value, kind)
    _check_fits(host, kind)
    if sizes is not None:
        pairs = zip(sizes, host.shape, strict=False)
        if len(sizes) != host.ndim or any(want not in (None, size) for want, size in pairs):
            raise UsageError.of("shape", f"of the initial value's {host.shape}", tuple(sizes))
    whole = host if shape is None or host.shape == shape else np.broadcast_to(host, shape)
    # Copies: JAX may share the memory of a NumPy array, which the program may change.
    if not traced:
        return jnp.array(whole, kind), None, kind
    kept = np.array(whole)
    return (lambda shape, dtype: jnp.asarray(kept, dtype)), kept.shape, kind


def _on_host(value: Any) -> np.ndarray:
    value = _compat.read(value) if isinstance(value, _compat.KerasVariable) else value
    if isinstance(value, Tracer):
        example = seams.spelled("tf.Variable(lambda: tf.zeros", "rx.Variable(lambda: jnp.zeros")
        raise UsageError(
            "Cannot make a variable from a value that compiled code computes. Pass a function, "
            f"`{example}([3]))`, or make the variable outside."
        )
    if isinstance(value, jax.Array):
        return np.asarray(value)
    host = np.asarray(value)
    if host.dtype.kind in "OUS":
        raise UsageError(
            f"A variable cannot hold a {type(value).__name__}: it must be numbers. Keep it in a "
            "Python object; `rx.train.Value` saves one in a checkpoint."
        )
    if not hasattr(value, "dtype") and host.dtype.kind in "if":
        narrow = {"i": np.int32, "f": np.float32}[host.dtype.kind]
        _check_fits(host, str(np.dtype(narrow)))
        host = host.astype(narrow)
    return host


def _stored(dtype: Any) -> str:
    return str(jax.dtypes.canonicalize_dtype(dtype))


def _check_fits(host: np.ndarray, kind: str) -> None:
    if host.dtype.kind not in "iu" or np.dtype(kind).kind not in "iu" or not host.size:
        return
    limits, low, high = np.iinfo(kind), int(host.min()), int(host.max())
    if low < limits.min or high > limits.max:
        raise UsageError(
            f"{high if high > limits.max else low} does not fit into {kind}. Use a smaller number, "
            "or call `jax.config.update('jax_enable_x64', True)` first."
        )
