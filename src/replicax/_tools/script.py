"""A user's unmodified script, run inside another: `plan`, `verify`, `profile`, `doctor`, `migrate`.

It runs as if it had been started by itself; under a strategy that it did not choose; for a number
of training steps; or with a function of Keras replaced, to see how it is called.
"""

from __future__ import annotations

import contextlib
import functools
import os
import runpy
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax
import keras

from replicax import testing
from replicax._core import events
from replicax._core.context import current_frame, set_frame
from replicax._core.errors import UsageError
from replicax._core.machine import startup
from replicax.cluster_resolver import TFConfigClusterResolver
from replicax.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    ModelParallelStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    Strategy,
    TPUStrategy,
    experimental_set_strategy,
)
from replicax.strategies._parameter_server import ParameterServerStrategy
from replicax.train import CheckpointManager, _manager

_OF_ONE_MACHINE = (
    MirroredStrategy,
    CentralStorageStrategy,
    OneDeviceStrategy,
    ModelParallelStrategy,
)
_OF_A_CLUSTER = (MultiWorkerMirroredStrategy, TPUStrategy)

NO_TRAINING = ("test step", "predict step")


def run_program(path: str, arguments: Sequence[str] = (), *, forget: bool = False) -> None:
    """Run a script to its end.

    If it is to `forget`, the modules beside the script, which it has imported, are imported anew
    when it runs again.
    """
    try:
        with _as_program(path, arguments, forget=forget), _other_checkpoints():
            runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


@contextlib.contextmanager
def _as_program(
    path: str, arguments: Sequence[str], *, forget: bool
) -> Generator[None, None, None]:
    """Set `sys.argv` and the first entry of `sys.path` as for the script."""
    argv, paths, modules = sys.argv, list(sys.path), set(sys.modules)
    folder = Path(path).resolve().parent
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, paths
        for name in _beside(folder, set(sys.modules) - modules) if forget else ():
            del sys.modules[name]


@contextlib.contextmanager
def _other_checkpoints() -> Generator[None, None, None]:
    """Give backups and managers of checkpoints a folder of their own, which is then deleted.

    So a script neither continues an earlier run nor replaces what that run has saved.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        others: dict[str, str] = {}

        def elsewhere(path: Any) -> Any:
            if not isinstance(path, str | os.PathLike):
                return path  # and is refused
            known = os.path.abspath(path)
            return others.setdefault(known, os.path.join(folder, str(len(others))))

        def of_list(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda directory, *args: function(
                others.get(os.path.abspath(directory), directory), *args
            )

        def of_manager(init: Callable[..., Any]) -> Callable[..., Any]:
            return lambda self, checkpoint, directory, *args, **kwargs: init(
                self, checkpoint, elsewhere(directory), *args, **kwargs
            )

        def of_backup(init: Callable[..., Any]) -> Callable[..., Any]:
            return lambda self, backup_dir, *args, **kwargs: init(
                self, elsewhere(backup_dir), *args, **kwargs
            )

        with (
            replaced(CheckpointManager, "__init__", of_manager),
            replaced(_manager, "_numbered", of_list),  # the existing devices, by any function
            replaced(_manager, "_bundles", of_list),
            replaced(keras.callbacks.BackupAndRestore, "__init__", of_backup),
        ):
            yield


def _beside(folder: Path, names: set[str]) -> list[str]:
    """The modules whose files are in a folder, but not installed in it.

    A Python, or this library, may be below the folder.
    """
    library = Path(sysconfig.get_path("stdlib")).resolve()

    def lies_there(name: str) -> bool:
        file = getattr(sys.modules[name], "__file__", None)
        if not file or name.split(".")[0] == "replicax" or "site-packages" in Path(file).parts:
            return False
        place = Path(file).resolve()
        return place.is_relative_to(folder) and not place.is_relative_to(library)

    return [name for name in names if lies_there(name)]


class Ended(BaseException):
    """Ends a program where it is; its own `except Exception` must not catch it."""


@contextlib.contextmanager
def ended_after(steps: int) -> Generator[None, None, None]:
    """End the program in the block when it begins a step after `steps`.

    Steps are the batches of `fit` and `train_on_batch`, and the calls of `strategy.run` and of
    compiled functions; batches of `evaluate` and `predict` do not count.
    """
    count = 0

    def begin(doing: str) -> None:
        nonlocal count
        count += doing not in NO_TRAINING
        if count > steps:
            raise Ended

    end = events.listen(begin)
    try:
        with contextlib.suppress(Ended):
            yield
    finally:
        end()


@contextlib.contextmanager
def under(strategy: Strategy, *, shown_replicas: int | None = None) -> Generator[None, None, None]:
    """Run the block under a strategy, whichever it makes for itself.

    Strategies that it makes have the devices, variables and reductions of this one. Before it makes
    one, or without any, it runs in the scope of this one. The devices are fixed: a request for
    virtual ones has no effect. Outside `run`, where it makes batches, its number of replicas is
    `shown_replicas`, by default the true one.
    """
    with (
        replaced(testing, "virtual_devices", lambda _: _devices),
        replaced(startup, "set_cpu_devices", lambda _: lambda _count: None),
        _standing_in(strategy, shown_replicas),
    ):
        yield


def _devices(_count: int) -> list[Any]:
    return jax.local_devices(backend="cpu")


@contextlib.contextmanager
def replaced(
    owner: Any, name: str, wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Generator[None, None, None]:
    """Let `owner.name` be `wrapper(owner.name)` in a `with` block."""
    original, is_own = getattr(owner, name), name in vars(owner)
    # Keeps the marks of the engine's seams, which would otherwise be installed again.
    setattr(owner, name, functools.update_wrapper(wrapper(original), original))
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def noting(made: list[Any]) -> Callable[..., Any]:
    """A wrapper for `replaced`: each object whose method has run is noted."""

    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            made.append(self)
            return result

        return method

    return wrapper


@contextlib.contextmanager
def _standing_in(
    chosen: Strategy, shown_replicas: int | None = None
) -> Generator[None, None, None]:
    """Make every strategy that is constructed in the block work as the chosen one.

    The chosen one is current until then, so that a program without any is in its scope. What was
    current before is so again behind the block, whatever the program has set.
    """
    kinds = {
        **dict.fromkeys(_OF_ONE_MACHINE, _alike(chosen, None)),
        **dict.fromkeys(_OF_A_CLUSTER, _alike(chosen, TFConfigClusterResolver)),
        ParameterServerStrategy: _refused,
    }
    originals = {kind: kind.__init__ for kind in kinds}
    number, before = Strategy.num_replicas_in_sync, current_frame()
    experimental_set_strategy(chosen)
    try:
        if shown_replicas is not None:
            setattr(Strategy, "num_replicas_in_sync", _showing(shown_replicas, number))  # noqa: B010
        for kind, init in kinds.items():
            kind.__init__ = init
        yield
    finally:
        for kind, init in originals.items():
            kind.__init__ = init
        setattr(Strategy, "num_replicas_in_sync", number)  # noqa: B010
        set_frame(None)  # a scope that the program has entered and not left
        experimental_set_strategy(before.strategy if before else None)


def _showing(shown_replicas: int, number: Any) -> property:
    def num_replicas_in_sync(self: Strategy) -> int:
        frame = current_frame()
        is_replica = frame is not None and frame.replica is not None
        return number.fget(self) if is_replica else shown_replicas

    return property(num_replicas_in_sync)


def _alike(chosen: Strategy, resolver: Callable[[], Any] | None) -> Callable[..., None]:
    def init(self: Strategy, *args: Any, **kwargs: Any) -> None:
        _leave(chosen)
        # The engine is shared: variables made before, in the scope of the chosen one, fit.
        engine = chosen.extended.distribution.engine
        Strategy.__init__(self, engine, cluster_resolver=resolver() if resolver else None)

    return init


def _leave(chosen: Strategy) -> None:
    frame = current_frame()
    if frame is not None and frame.is_global and frame.strategy is chosen:
        experimental_set_strategy(None)


def refusing_parameter_servers() -> contextlib.AbstractContextManager[None]:
    """Let a script that makes a `ParameterServerStrategy` fail there, in a `with` block."""
    return replaced(
        ParameterServerStrategy, "__init__", lambda _: functools.partial(_refused, None)
    )


def _refused(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise UsageError(
        "Cannot follow the steps of a ParameterServerStrategy: its workers do not train in step. "
        "Use another strategy in the script, or none."
    )
