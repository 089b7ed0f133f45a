"""A Keras callback that measures the parts of a step, and writes them on one page."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import keras

from replicax._core.errors import UsageError, checks_types
from replicax._core.folder import named
from replicax._keras import _compat
from replicax._tools.profile.recorder import Plan, Recorder, callbacks_timed
from replicax._tools.profile.summary import summarized
from replicax._tools.profile.text import to_json, to_markdown

if TYPE_CHECKING:
    from replicax._tools.profile.result import Profile


@checks_types
class Profiler(keras.callbacks.Callback):
    """Profile some steps of `fit`: `profile.md`, `profile.json` and a trace in `log_dir`.

    It measures the same as `replicax profile`: see docs/monitoring.md. `fit` continues after these
    steps. While it measures, it waits for each step. With several workers, each writes to a folder
    of its own: `worker-0`, `worker-1` and so on in `log_dir`.

    Args:
        log_dir: The folder; `tensorboard --logdir` reads it, too.
        warm_up: The number of steps before the measured ones.
        steps: The number of steps to measure.
        traced: The number of steps after them that JAX's profiler traces; 0 for no trace.

    Attributes:
        profile: The profile, after `fit`; None if `fit` had too few steps.

    Raises:
        UsageError: If there is no step to measure, or if the model of `fit` has no strategy or has
            parameter servers.

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
        for name, value, least in (
            ("warm_up", warm_up, 0),
            ("steps", steps, 1),
            ("traced", traced, 0),
        ):
            if value < least:
                raise UsageError.of(name, f"at least {least}", value)
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
                f"Cannot profile {getattr(model, 'name', model)!r}, which was made outside every "
                "scope. Make it in the scope of a strategy, such as `OneDeviceStrategy`."
            )
        if strategy.extended.distribution.engine.closures is not None:
            raise UsageError(
                f"Cannot profile a model of {strategy!r}, whose workers compute in other "
                "processes. Profile it under a `OneDeviceStrategy`, or leave out the callback."
            )
        self._open.close()
        self.profile = None
        several = jax.process_count() > 1
        self._folder = self.log_dir / f"worker-{jax.process_index()}" if several else self.log_dir
        self._recorder = Recorder(self.plan, self._folder if self.plan.traced else None)
        self._open.enter_context(self._recorder.recording())
        self._open.enter_context(callbacks_timed())
        _compat.at_end_of_fit(model, self._open.close)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._open.close()
        assert self._recorder is not None
        try:
            self.profile = summarized(self._recorder, "fit")
        except UsageError as error:  # do not lose the trained model over a profile
            warnings.warn(f"No profile was made. {error}", stacklevel=2)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in (("md", to_markdown), ("json", to_json)):
            with named(self._folder):
                (self._folder / f"profile.{name}").write_text(text(self.profile), encoding="utf-8")
