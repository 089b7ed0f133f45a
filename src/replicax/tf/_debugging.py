"""`tf.debugging`: checks; checks of values work in compiled code, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.host_calls import Check, array_of, call_on_host, is_compiling
from replicax._program.capture import current_recorder
from replicax._program.explain import current_line
from replicax.tf._calls import published

_log_placement = [False]


def _check(holds: Callable[..., Any], what: str, message: Any, *values: Any) -> None:
    """Check `holds(numpy, *values)` now, or, of compiled code, whenever it runs."""
    arrays = [array_of(value) for value in values]
    numpy = jnp if is_compiling(*arrays) else np
    right = holds(numpy, *arrays)
    line = f" {current_line()}" if isinstance(right, Tracer) else ""  # no traceback shows it
    check = Check(
        f"Check failed: {what}, but got ",
        f"{line}. {f'{message}. ' if message else ''}Look at the code that made these values.",
    )
    if not isinstance(right, Tracer):
        check(right, *arrays)
        return
    found = jnp.all(right), *(_first_wrong(right, array) for array in arrays)
    recorder = current_recorder()
    if recorder is None or not recorder.check(check, *found):
        call_on_host(check, *found)


def _first_wrong(right: Any, array: Any) -> Any:
    """Of an array, the number for which a check does not hold, or its first numbers."""
    if array.ndim > right.ndim:
        return array.reshape(-1)[:3]
    return jnp.broadcast_to(array, right.shape).reshape(-1)[jnp.argmin(right)]


def _published(check: Callable[..., None], name: str, what: str) -> Callable[..., None]:
    return published(check, name, f"Check that {what}; in compiled code, whenever it runs.")


def _of_two(asserted: str, operation: str, what: str) -> Callable[..., None]:
    def check(
        x: Any, y: Any, message: Any = None, summarize: Any = None, name: str | None = None
    ) -> None:
        _check(lambda numpy, x, y: getattr(numpy, operation)(x, y), what, message, x, y)

    return _published(check, asserted, what)


def _of_sign(asserted: str, operation: str, what: str) -> Callable[..., None]:
    def check(x: Any, message: Any = None, summarize: Any = None, name: str | None = None) -> None:
        _check(lambda numpy, x: getattr(numpy, operation)(x, 0), what, message, x)

    return _published(check, asserted, what)


assert_equal = _of_two("assert_equal", "equal", "x equals y everywhere")
assert_none_equal = _of_two("assert_none_equal", "not_equal", "x differs from y everywhere")
assert_less = _of_two("assert_less", "less", "x is less than y everywhere")
assert_less_equal = _of_two("assert_less_equal", "less_equal", "x is at most y everywhere")
assert_greater = _of_two("assert_greater", "greater", "x is greater than y everywhere")
assert_greater_equal = _of_two(
    "assert_greater_equal", "greater_equal", "x is at least y everywhere"
)
assert_positive = _of_sign("assert_positive", "greater", "x is positive everywhere")
assert_non_negative = _of_sign("assert_non_negative", "greater_equal", "x is nowhere negative")
assert_negative = _of_sign("assert_negative", "less", "x is negative everywhere")
assert_non_positive = _of_sign("assert_non_positive", "less_equal", "x is nowhere positive")


def assert_near(
    x: Any,
    y: Any,
    rtol: Any = None,
    atol: Any = None,
    message: Any = None,
    summarize: Any = None,
    name: str | None = None,
) -> None:
    """Check that x and y are close: |x - y| <= atol + rtol · |y|, both 1.2e-6 by default."""
    step = 10 * float(np.finfo(np.float32).eps)
    rtol, atol = (step if one is None else one for one in (rtol, atol))

    def near(numpy: Any, x: Any, y: Any) -> Any:
        return numpy.abs(x - y) <= atol + rtol * numpy.abs(y)

    _check(near, "x is near y everywhere", message, x, y)


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Any:
    """The array, checked for NaN and infinity; in compiled code, whenever it runs."""
    _check(lambda numpy, x: numpy.isfinite(x), "no number is NaN or infinite", message, tensor)
    return tensor


def assert_all_finite(x: Any, message: str, name: str | None = None) -> Any:
    """As `check_numerics`."""
    return check_numerics(x, message, name)


def Assert(condition: Any, data: Any, summarize: Any = None, name: str | None = None) -> None:
    """Check a condition; in compiled code, whenever it runs. Text in `data` is the message."""
    text = " ".join(str(one) for one in data if isinstance(one, str | bytes))
    arrays = [one for one in data if not isinstance(one, str | bytes)]
    _check(
        lambda numpy, right, *data: numpy.all(right),
        "the condition is true",
        text,
        condition,
        *arrays,
    )


def assert_rank(x: Any, rank: int, message: Any = None, name: str | None = None) -> None:
    """Check how many axes there are."""
    _refuse_unless(np.ndim(x) == int(rank), f"the rank is {rank}", np.shape(x), message)


def assert_rank_at_least(x: Any, rank: int, message: Any = None, name: Any = None) -> None:
    """Check that there are at least `rank` axes."""
    _refuse_unless(np.ndim(x) >= int(rank), f"the rank is at least {rank}", np.shape(x), message)


def assert_rank_in(x: Any, ranks: Any, message: Any = None, name: str | None = None) -> None:
    """Check that the number of axes is one of these."""
    _refuse_unless(np.ndim(x) in ranks, f"the rank is one of {list(ranks)}", np.shape(x), message)


def assert_scalar(tensor: Any, name: str | None = None, message: Any = None) -> Any:
    """Check that it is a single number."""
    _refuse_unless(np.ndim(tensor) == 0, "it is a single number", np.shape(tensor), message)
    return tensor


def assert_type(tensor: Any, tf_type: Any, message: Any = None, name: str | None = None) -> None:
    """Check the type of the elements."""
    kind = array_of(tensor).dtype
    _refuse_unless(kind == np.dtype(tf_type), f"the type is {np.dtype(tf_type)}", kind, message)


def assert_integer(x: Any, message: Any = None, name: str | None = None) -> None:
    """Check that the elements are integers."""
    kind = array_of(x).dtype
    _refuse_unless(jnp.issubdtype(kind, jnp.integer), "the type is of integers", kind, message)


def assert_same_float_dtype(tensors: Any = None, dtype: Any = None) -> Any:
    """Check that all have one floating-point type, and return it."""
    kinds = {array_of(tensor).dtype for tensor in tensors or ()} | (
        {np.dtype(dtype)} if dtype else set()
    )
    right = len(kinds) == 1 and all(jnp.issubdtype(kind, jnp.floating) for kind in kinds)
    _refuse_unless(right, "there is one floating-point type", kinds, "")
    return next(iter(kinds))


def assert_shapes(
    shapes: Any, data: Any = None, summarize: Any = None, message: Any = None, name: Any = None
) -> None:
    """Check shapes that have axes in common.

    **Differs from TF:** `data` and `summarize` have no effect.
    """
    known: dict[Any, int] = {}
    for tensor, axes in shapes.items() if isinstance(shapes, dict) else shapes:
        found, wanted = np.shape(tensor), list(axes) if isinstance(axes, str) else axes
        wanted = [wanted] if isinstance(wanted, int) else list(wanted)
        if wanted[:1] in ([Ellipsis], ["*"]):
            wanted = wanted[1:]
            found = found[len(found) - len(wanted) :] if len(found) >= len(wanted) else found
        right = len(found) == len(wanted) and all(
            axis in (None, ".")
            or known.setdefault(axis, axis if isinstance(axis, int) else size) == size
            for axis, size in zip(wanted, found, strict=True)
        )
        _refuse_unless(right, f"the shape is {axes}, where {known}", np.shape(tensor), message)


def _refuse_unless(right: bool, what: str, found: Any, message: Any) -> None:
    if not right:
        raise UsageError(
            f"Check failed: {what}, but got {found}. {f'{message}. ' if message else ''}Look at "
            "the code that made it."
        )


def enable_check_numerics(stack_height_limit: int = 30, path_length_limit: int = 50) -> None:
    """Stop at the first NaN that compiled code returns; see `jax_debug_nans`."""
    jax.config.update("jax_debug_nans", True)
    jax.config.update("jax_debug_infs", True)


def disable_check_numerics() -> None:
    """Do so no more."""
    jax.config.update("jax_debug_nans", False)
    jax.config.update("jax_debug_infs", False)


def set_log_device_placement(enabled: bool) -> None:
    """Noted, and of no consequence: see `jax.Array.devices()`."""
    _log_placement[0] = enabled


def get_log_device_placement() -> bool:
    """The value of `set_log_device_placement`; False by default."""
    return _log_placement[0]


def is_numeric_tensor(tensor: Any) -> bool:
    """Whether it is an array of numbers."""
    kind = getattr(tensor, "dtype", None)
    return kind is not None and np.dtype(kind).kind not in "OSUb"


def enable_traceback_filtering() -> None:
    """Leave JAX's own lines out of tracebacks."""
    jax.config.update("jax_traceback_filtering", "auto")


def disable_traceback_filtering() -> None:
    """Show JAX's own lines in tracebacks."""
    jax.config.update("jax_traceback_filtering", "off")


def is_traceback_filtering_enabled() -> bool:
    """Whether they are left out."""
    return getattr(jax.config, "jax_traceback_filtering", "auto") != "off"
