"""What `replicax.tf` puts into Keras behind our own seams, with the first strategy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

from replicax._core import seams
from replicax._core.compiling import prepare
from replicax._core.table_gradients import with_rows
from replicax._core.topology import default_device
from replicax._keras import _compat
from replicax.tf._keras2 import around, uncalled


def install() -> None:
    """Put them in; it is called once."""
    uncalled.install()
    for kind in ("train", "test", "predict"):
        around(
            _compat.JAXTrainer,
            f"make_{kind}_function",
            functools.partial(_of_the_default_strategy, kind=kind),
        )


def _of_the_default_strategy(original: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Keras' own function of a model without a strategy, which the default strategy trains."""

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if _compat.strategy_of(self) is not None or not seams.speaks_tensorflow:
            return original(self, force)
        prepare(default_device().platform)
        with _tables_by_rows(self) if kind == "train" else contextlib.nullcontext():
            return original(self, force)

    return make


@contextlib.contextmanager
def _tables_by_rows(model: Any) -> Generator[None, None, None]:
    """Let what Keras compiles keep the gradients of tables as rows, as our own steps do."""
    attributes = vars(model)
    own = attributes.get("train_step")
    if not model.run_eagerly and model.jit_compile and _compat.distribution() is None:
        platform = default_device().platform
        attributes["train_step"] = with_rows(model.train_step, None, platform=platform)
    try:
        yield
    finally:
        attributes.pop("train_step", None)
        if own is not None:
            attributes["train_step"] = own
