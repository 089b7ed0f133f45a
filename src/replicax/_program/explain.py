"""Explains JAX's errors to users: the cause, the line of their code, and the worker."""

from __future__ import annotations

import contextlib
import linecache
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from replicax._core import seams
from replicax._core.channel import current
from replicax._core.errors import LeakedTracer, UsageError
from replicax._core.machine.memory import free_memory, size
from replicax._core.topology import device_name
from replicax._core.tracing import NeedsValues

_LIBRARIES = {"jax", "jaxlib", "keras", "malt", "numpy", "replicax"}
_NEEDS_A_NUMBER = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)
_IS_A_SIZE = (jax.errors.NonConcreteBooleanIndexError, jax.errors.TracerIntegerConversionError)
# What JAX says of the gradient of a loop without a known end.
_NO_REVERSE = "Reverse-mode differentiation does not work for lax.while_loop"
# What JAX says of a slice whose ends it does not know: the first up to 0.10.
_NO_END = ("Slice entries must be static integers", "Array slice indices must have static")
# A status of the runtime. XLA:CPU raises those of its collectives as a plain ValueError.
_STATUS = re.compile(
    r"(?:UNKNOWN|INTERNAL|ABORTED|CANCELLED|UNAVAILABLE|DEADLINE_EXCEEDED|FAILED_PRECONDITION): "
)

_NO_MEMORY = "RESOURCE_EXHAUSTED"
WHAT_TO_TRY = (
    "The device has too little memory for this program. Make `batch_size` smaller: "
    "`rx.find_batch_size` finds the largest that fits. Or train in `mixed_bfloat16`, or divide the "
    "variables over devices: `MirroredStrategy(shard_parameters=True)`. `replicax doctor` shows "
    "which processes hold memory. See docs/fit.md."
)


def raise_explained(error: Exception, needs: Callable[[], str] = str) -> NoReturn:
    """Raise an error of a trace or a step, explained if JAX raised it.

    `needs` describes the memory of the step, for a step that ran out of memory.
    """
    _advise(error, needs)
    explained = explain(error)
    if explained is error:
        raise error
    root = root_of(error)
    raise explained from (None if explained is root else root)


def _advise(error: Exception, needs: Callable[[], str]) -> None:
    """Add advice to an out-of-memory error of an accelerator, once."""
    if not is_device_error(error) or _NO_MEMORY not in str(error):
        return
    is_noted = any(note.endswith(WHAT_TO_TRY) for note in getattr(error, "__notes__", ()))
    if jax.default_backend() == "cpu" or is_noted:
        return
    memory = ""
    with contextlib.suppress(Exception):  # the error matters more than its explanation
        memory = needs()
    error.add_note(memory + WHAT_TO_TRY)


def explain(error: Exception) -> Exception:
    """Return an explained error for a JAX tracing error; any other error as it is."""
    if isinstance(error, NeedsValues):
        return error
    root = root_of(error)
    if isinstance(root, _NEEDS_A_NUMBER):
        error = root
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return LeakedTracer(
            "This array belongs to an earlier trace, which stored it outside. A function that is "
            "compiled runs once, with placeholders: return the value, or keep it in a "
            "`keras.Variable`. See docs/custom_loops.md#what-must-not-escape."
        )
    is_end = isinstance(root, IndexError) and str(root).startswith(_NO_END)
    ops = seams.spelled("tf", "keras.ops")
    if is_end or isinstance(root, _IS_A_SIZE):
        return NeedsValues(
            f"Cannot use an array of compiled code as an index, a size or an end of a slice "
            f"{user_line(root)}: XLA needs fixed shapes. Use `{ops}.slice(x, [start], [3])` "
            f"for a known size, or `{ops}.where` with a mask; or compute it outside, as in "
            "`dataset.map`."
        )
    if isinstance(error, _NEEDS_A_NUMBER):
        return LeakedTracer(
            f"Compiled code needs the value of an array {user_line(error)} "
            f"({type(error).__name__}); {why_not_converted(error)}. Use `{ops}.cond`, "
            f"`{ops}.where` or `{ops}.while_loop`, and arrays in place of `int`, `float` and "
            "NumPy; or return the value and look at it outside."
        )
    if isinstance(error, ValueError) and str(error).startswith(_NO_REVERSE):
        known = seams.spelled(
            "Write `tf.autograph.experimental.set_loop_options(maximum_iterations=n)` in the loop, "
            "or pass `maximum_iterations` to `tf.while_loop`.",
            "Use `jax.lax.scan`, or `jax.lax.fori_loop` between two numbers.",
        )
        return UsageError(
            f"No gradient through this loop, {user_line(error)}: its number of rounds is not "
            f"known. {known}"
        )
    return layer_error(error)


def variable_in_jax(path: str) -> UsageError:
    return UsageError(
        f"Cannot use variable '{path}' of a step inside `jax.jit`, `jax.lax.scan` or the like: it "
        "would be a constant, and writes would be lost. Compile with `rx.function` instead."
    )


def tracer_for_variable(path: str) -> UsageError:
    return UsageError(
        f"Cannot assign to variable '{path}' a value of a `jax.grad` or `jax.vmap` around the "
        "step. Transform the function inside the step, or use `rx.value_and_grad` or a "
        "`GradientTape`."
    )


def user_line(error: BaseException) -> str:
    """The innermost line of user code in an error's traceback, as text."""
    return _line_of(reversed(list(traceback.walk_tb(error.__traceback__))))


def current_line() -> str:
    """The line of user code that is running, as text."""
    return _line_of(traceback.walk_stack(None))


def why_not_converted(error: BaseException) -> str:
    """Why the control flow of the innermost user function was not converted, as text."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code in seams.unconverted:
            name, why = frame.f_code.co_name, seams.unconverted[frame.f_code]
            return f"the `if` and `while` of `{name}` are Python's: it was not converted ({why})"
        if not _is_library(frame):
            break
    if seams.speaks_tensorflow:
        return "the code that asks was not converted: NumPy, a library's call, `autograph=False`"
    return "Python's `if` and `while` are converted only for programs that import `replicax.tf`"


def _line_of(places: Iterable[tuple[Any, int]]) -> str:
    for frame, number in places:
        if not _is_library(frame):
            file = frame.f_code.co_filename
            line = linecache.getline(file, number).strip()
            return f"at {os.path.basename(file)}:{number}" + (f", `{line}`" if line else "")
    return "from `float`, `int`, `bool`, `if` or NumPy"


def root_of(error: BaseException) -> BaseException:
    """The error from which libraries made this one; an error of user code is returned as it is.

    Keras raises an error of its own, which says less, where a layer's `call` fails.
    """
    while error.__traceback__ is not None:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        before = error.__cause__ or error.__context__
        if before is None or not _is_library(frame):
            break
        error = before
    return error


def layer_error(error: Exception) -> Exception:
    """The original error of a layer, if Keras failed to copy it.

    Keras makes a copy of a layer's error with the layer's arguments in its text. If the class takes
    more than a text, Keras raises an error about that instead.
    """
    root: Any = root_of(error)
    if not isinstance(error, TypeError | AttributeError) or root is error:
        return error  # not the error of a wrong call of the class
    if str(root) in str(error):
        return error
    try:
        type(root)("")
    except Exception:
        return root
    return error


def error_before_build(error: BaseException) -> BaseException:
    """The original error of a layer that Keras built before `fit`.

    `error` is what our wrapper of Keras' method caught. If Keras' method itself raised it, the
    traceback has only the frames of the wrapper and of the method.
    """
    entry = error.__traceback__ and error.__traceback__.tb_next
    return error.__context__ or error if entry and entry.tb_next is None else error


def _is_library(frame: Any) -> bool:
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__"}


def is_device_error(error: BaseException) -> bool:
    """Whether an error comes from a running executable: another worker may have caused it."""
    if isinstance(error, jax.errors.JaxRuntimeError):
        return True
    return type(error) is ValueError and bool(_STATUS.match(str(error)))


def end_if_worker_failed(error: BaseException) -> None:
    """End this process if another worker caused the error, with a message that names it."""
    if current().size > 1 and is_device_error(error):
        current().explain(error)


def note_lost_variables(error: Exception, variables: Iterable[Any], values: Iterable[Any]) -> None:
    """Add a note on variables whose donated values a failed step has lost."""
    pairs = zip(variables, values, strict=True)
    lost = [one.path for one, value in pairs if getattr(value, "is_deleted", bool)()]
    if lost:
        error.add_note(
            f"{len(lost)} variables have lost their values, such as {lost[0]!r}: a step failed "
            "after it had reused their memory. Load a checkpoint. See docs/fault_tolerance.md."
        )


def memory_needs(compiled: Any, variables: tuple[Sequence[Any], Sequence[Any]], arrays: Any) -> str:
    """The memory that a step needs on each device, and the batch size that would fit, as text.

    `compiled` is a result of `jax.jit`; `variables` are the values of the written and the other
    variables; `arrays` are the batches of `fit`, or the arguments of `run`.
    """
    analysis = compiled.trace(*variables, arrays).lower().compile().memory_analysis()
    held = [value for values in variables for value in values]
    devices = sorted(held[0].sharding.device_set, key=lambda device: device.id)
    fixed, arguments = sum(map(_bytes_on_a_device, held)), analysis.argument_size_in_bytes
    outputs = max(0, analysis.output_size_in_bytes - analysis.alias_size_in_bytes)
    total = arguments + analysis.temp_size_in_bytes + outputs
    text = (
        f"The step needs {size(total)} on each of {len(devices)} device(s): {size(fixed)} for "
        f"variables, {size(max(0, arguments - fixed))} for its arguments, "
        f"{size(analysis.temp_size_in_bytes)} for temporaries, {size(outputs)} for outputs. "
    )
    here = [one for one in devices if one.process_index == jax.process_index()]
    free = {one: count for one in here if (count := free_memory([one])) is not None}
    if not free:
        return text
    fullest = min(free, key=free.__getitem__)
    available = free[fullest] + arguments  # which are allocated already
    text += f"{device_name(fullest)} has {size(available)} for it. "
    if available >= total:  # another program took it meanwhile, or it is fragmented
        return text
    if available <= fixed:
        return f"{text}No batch fits beside the variables. "
    share = (available - fixed) / (total - fixed)
    return f"{text}In proportion, {_rows(share, arrays, len(devices))} would fit. "


def _rows(share: float, arrays: Any, devices: int) -> str:
    if not isinstance(arrays[0], tuple):  # arguments of `run`: rows may be on any axis
        return f"a batch {share:.2f} times as large"
    rows = jax.tree.leaves(arrays[0])[0].shape[0]
    return f"a batch of {int(share * rows) // devices * devices} instead of {rows} rows"


def _bytes_on_a_device(value: Any) -> int:
    shape = value.sharding.shard_shape(value.shape)
    return int(np.prod(shape, dtype=np.int64)) * value.dtype.itemsize
