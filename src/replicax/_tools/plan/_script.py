"""Runs a script up to the first training step, and takes the model and the batch from there."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any, NoReturn

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._tools.plan._compiled import shapes_of
from replicax._tools.script import replaced, run_program

# The first one found wins: `fit` makes its batches itself, the others get one.
_STEPS = ("fit", "train_on_batch")


class _Found(BaseException):
    """Ends the script where it would train; its own `except Exception` must not catch it."""

    def __init__(self, model: Any, batch: Any) -> None:
        super().__init__()
        self.model = model
        self.batch = batch


def from_script(path: str, arguments: Sequence[str] = ()) -> tuple[Any, Any]:
    """Run a script until it calls `fit` or `train_on_batch` of a model, which is not run.

    Returns the model, and the first batch that it would be trained with, without its values. The
    batch is None if the script ended without training, but has compiled a model.
    """
    compiled: list[Any] = []
    try:
        with _intercepted(compiled):
            run_program(path, arguments)
    except _Found as found:
        return found.model, found.batch
    if not compiled:
        raise UsageError(
            f"Cannot plan {path!r}: it ended without compiling a model. Call `model.compile(…)` "
            "and `fit` in it; it is stopped at `fit`."
        )
    return compiled[-1], None


@contextlib.contextmanager
def _intercepted(compiled: list[Any]) -> Generator[None, None, None]:
    """Stop at the first training step; note the models that are compiled before."""
    with contextlib.ExitStack() as stack:
        for name in _STEPS:
            stack.enter_context(replaced(_compat.JAXTrainer, name, _stopping))
        stack.enter_context(
            replaced(_compat.Trainer, "compile", lambda original: _noting(original, compiled))
        )
        yield


def _stopping(original: Callable[..., Any]) -> Callable[..., NoReturn]:
    signature = inspect.signature(original)

    def stopped(*args: Any, **kwargs: Any) -> NoReturn:
        given = signature.bind(*args, **kwargs).arguments
        raise _Found(given["self"], shapes_of(_first_batch(given, original.__name__)))

    return stopped


def _noting(original: Callable[..., Any], compiled: list[Any]) -> Callable[..., Any]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        compiled.append(self)
        return result

    return compile


_OF_DATA = ("y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight")


def _first_batch(given: dict[str, Any], method: str) -> Any:
    """The first batch of what `fit` was given, or all that `train_on_batch` was."""
    x = given.get("x")
    if method == "train_on_batch":
        parts = (x, given.get("y"), given.get("sample_weight"))
        return _without_last_nones(parts)
    options = {name: given[name] for name in _OF_DATA if given.get(name) is not None}
    adapter = _compat.data_adapters.get_data_adapter(x, **options)
    batch = next(iter(adapter.get_jax_iterator()))
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    return _without_last_nones(parts)


def _without_last_nones(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments without trailing Nones; a None before others keeps its place."""
    count = max((i for i, part in enumerate(parts, 1) if part is not None), default=0)
    return tuple(parts[:count])
