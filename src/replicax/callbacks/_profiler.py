"""A Keras callback that measures what a step goes into, and writes it on one page."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._tools.profile import _render
from replicax._tools.profile._recorder import Plan, Recorder
from replicax._tools.profile._summary import summarized
from replicax._tools.profile._talk import talk_timed

if TYPE_CHECKING:
    from replicax._tools.profile._result import Profile


class Profiler(keras.callbacks.Callback):
    """Profile some steps of `fit`: `profile.md`, `profile.json` and a trace in `log_dir`.

    What is measured is what `replicax profile` measures: see docs/profile.md. `fit` goes on when
    the steps are over. While it measures, each step is waited for. Of several workers each writes
    into a folder of its own: `worker-0`, `worker-1` and so on in `log_dir`.

    Args:
        log_dir: The folder, for `tensorboard --logdir`, too.
        warm_up: How many steps come before those that are measured.
        steps: How many are measured.
        traced: How many of those behind them JAX's profiler sees; 0 for no trace.

    Attributes:
        profile: What was measured, when `fit` has ended; None if that had too few steps.

    Raises:
        UsageError: If there is no step to measure, or `fit` is that of a model which no strategy
            owns, or parameter servers.

    Example:
        >>> import replicax as rx
        >>> callback = rx.callbacks.Profiler("logs", steps=10)
    """

    writes_below = "log_dir"
    every_worker_writes = True

    def __init__(
        self,
        log_dir: str | Path = "profile",
        *,
        warm_up: int = 3,
        steps: int = 20,
        traced: int = 5,
    ) -> None:
        super().__init__()
        if min(warm_up, traced) < 0 or steps < 1:
            raise UsageError(
                "A profile is the mean of some steps. Received: "
                f"warm_up={warm_up}, steps={steps}, traced={traced}. There would be nothing to "
                "say. Measure one step or more, after none or more."
            )
        self.log_dir = Path(log_dir)
        self.plan = Plan(warm_up, steps, traced)
        self.profile: Profile | None = None
        self._folder = self.log_dir
        self._recorder: Recorder | None = None
        self._open = contextlib.ExitStack()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = _compat.model_of(self)
        strategy = _compat.strategy_of(model)
        if strategy is None:
            raise UsageError(
                "A model that is profiled belongs to a strategy. Received: "
                f"{getattr(model, 'name', model)!r}, which was made in no scope. Its steps are "
                "Keras' own, which tell nothing. Make it in the scope of a strategy, such as "
                "`OneDeviceStrategy`."
            )
        if strategy.extended.distribution.engine.closures is not None:
            raise UsageError(
                "The steps that are profiled are those of a synchronous strategy. "
                f"Received: a model of {strategy!r}. Parameter servers and their workers compute "
                "in processes of their own, which are not seen here. Profile the model under a "
                "`OneDeviceStrategy`, or leave out the callback."
            )
        self._open.close()
        self.profile = None
        several = jax.process_count() > 1
        self._folder = self.log_dir / f"worker-{jax.process_index()}" if several else self.log_dir
        self._recorder = Recorder(self.plan, self._folder if self.plan.traced else None)
        self._open.enter_context(self._recorder.recording())
        self._open.enter_context(talk_timed())
        _compat.at_end_of_fit(model, self._open.close)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._open.close()
        assert self._recorder is not None
        try:
            self.profile = summarized(self._recorder, "fit")
        except UsageError as nothing:  # what was trained is worth more than a profile
            warnings.warn(f"No profile was made. {nothing}", stacklevel=2)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("md", _render.to_markdown), ("json", _render.to_json)):
            (self._folder / f"profile.{name}").write_text(text(self.profile), encoding="utf-8")
