"""`rx.launch.run`: a function or a script as several workers, from Python and notebooks.

A function, its arguments and its results travel in files without names, which workers inherit:
nobody else can read one, or put another in its place.
"""

from __future__ import annotations

import importlib
import mmap
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.machinery import PathFinder
from math import inf
from typing import IO, Any, NamedTuple

from replicax._core.errors import ProcessesTimedOut, UsageError, checks_types
from replicax._processes.output import Sink
from replicax._processes.rules import Outcome, Rules, Signals
from replicax._processes.supervisor import run_attempts
from replicax.launch._plan import CALLED, Program, Surroundings
from replicax.launch._ray import Bundles, RayWorkers
from replicax.launch._run import (
    in_this_folder,
    local_cluster,
    published,
    reporting,
    telling_secret,
)


class Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]


def is_name(text: str) -> bool:
    """Whether the text is `module:function` and not a path."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None


def save_call(file: IO[bytes], function: Callable[..., Any] | str, args: tuple[Any, ...]) -> None:
    """Write a call of a function, or of `module:function`, for the workers to read."""
    try:
        data = pickle.dumps(args) if isinstance(function, str) else _by_value((function, args))
    except UsageError:
        raise
    except Exception as error:  # whatever the objects' own methods raise
        raise UsageError(
            f"Cannot pickle {function!r} and its {len(args)} arguments for the workers: "
            f"{error!r}. Create files, locks and devices inside the function."
        ) from error
    name = function if isinstance(function, str) else None
    _write(file, pickle.dumps((list(sys.path), name, data)))


def load_call(descriptor: int) -> Call:
    """Read the call in a worker, which then imports from the same places as the caller."""
    path, name, data = _read(descriptor)
    sys.path[:] = dict.fromkeys([*path, *sys.path])  # another machine has its own places
    if name is None:
        return Call(*pickle.loads(data))
    module, _, attribute = name.partition(":")
    function: Any = importlib.import_module(module)
    for part in attribute.split("."):
        function = getattr(function, part)
    return Call(function, pickle.loads(data))


def save_result(descriptor: int, result: Any) -> None:
    """Write what a worker's function returned; what an earlier attempt has written is replaced."""
    try:
        data = pickle.dumps(result)
    except Exception:
        data = _result_by_value(result)
    with open(descriptor, "r+b", closefd=False) as file:
        file.seek(0)
        file.truncate()
        _write(file, data)


def _write(file: IO[bytes], data: bytes) -> None:
    file.write(data)
    file.flush()


def _read(descriptor: int) -> Any:
    """The content of a file, whatever its offset is, which other processes share and move."""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        return pickle.loads(data)


def _result_by_value(result: Any) -> bytes:
    try:
        return _cloudpickle().dumps(result)
    except Exception as error:
        raise UsageError(
            f"Cannot pickle the function's result, a {type(result).__name__}: {error!r}. "
            "Return numbers, strings or arrays."
        ) from error


def _by_value(value: tuple[Callable[..., Any], tuple[Any, ...]]) -> bytes:
    """Pickle a function with its code, unless the workers can import it."""
    cloudpickle = _cloudpickle()
    module = sys.modules.get(getattr(value[0], "__module__", None) or "")
    if module is None or _can_be_imported(module.__name__):
        return cloudpickle.dumps(value)
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(value)
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _cloudpickle() -> Any:
    try:
        import cloudpickle  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError:
        raise UsageError(
            "Cannot send a function to the workers because cloudpickle is not installed. Run "
            "`pip install 'replicax[data]'`, or pass the function's name, \"module:function\"."
        ) from None
    return cloudpickle


def _can_be_imported(name: str) -> bool:
    """Whether a new process finds a module; test modules, for example, are on no path."""
    top = name.partition(".")[0]
    return top in sys.builtin_module_names or PathFinder.find_spec(top) is not None


@checks_types
def run(
    fn_or_script: Callable[..., Any] | str | os.PathLike[str],
    num_workers: int,
    *,
    devices_per_worker: int | None = None,
    args: Sequence[Any] = (),
    max_restarts: int = 0,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    ray: str | None = None,
    cpus_per_worker: float = 1,
    gpus_per_worker: float = 0,
    metrics: int | str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Run a function or a script as the workers of a cluster, and wait for them.

    It does what `replicax run` does, on this machine or by `ray=` on a Ray cluster: each worker
    finds the cluster in `TF_CONFIG` and joins it when it imports JAX. Its lines are shown behind
    `[worker 0]`. The first worker that fails ends all, as does Ctrl-C.

    Args:
        fn_or_script: A function, which is sent to the workers by cloudpickle; or the name of one
            that they import, `"module:function"`; or the path of a Python file.
        num_workers: How many workers.
        devices_per_worker: How many devices the CPU looks like in each; they use no GPU then.
        args: The arguments of the function, or of the script.
        max_restarts: How many times all are started again after a failure.
        timeout: Seconds after which all are ended.
        env: More variables for the environment of every worker; `{"RX_JOIN": "0"}` if they use
            JAX without being connected.
        ray: The address of a Ray cluster that runs, or "auto", also in a Ray job or a Ray Tune
            trial: Ray places the workers. Modules that the function imports must be there.
        cpus_per_worker: How many cores each worker asks Ray for.
        gpus_per_worker: How many GPUs.
        metrics: A port, "host:port" or a file, where Prometheus and `replicax top` read how
            training gets on; see docs/monitoring.md.

    Returns:
        What the function returned in each worker, in their order; None for each, for a script.

    Raises:
        ProcessFailed: If a worker failed. It has `rank`, `returncode` and `tail`, the last lines.
        ProcessesTimedOut: If the time was over.
        UsageError: If the function or its arguments cannot be sent.
        ClusterSpecError: If there are GPUs, and fewer of them than workers.
        ClusterError: If Ray is not there, or has no room for the workers.

    Example:
        >>> import replicax as rx
        >>> rx.launch.run("math:sqrt", num_workers=2, devices_per_worker=1, args=[9.0])
        [3.0, 3.0]
    """
    surroundings = Surroundings(
        os.environ, devices_per_worker, cores=os.cpu_count() or 1, extra=env or {}
    )
    bundles = Bundles(cpus_per_worker, gpus_per_worker)
    where = None if metrics is None else str(metrics)
    given = fn_or_script, args, num_workers, reporting(surroundings, where), ray, bundles
    return _run(*given, max_restarts=max_restarts, timeout=timeout, metrics=where)


def _run(
    fn_or_script: Callable[..., Any] | str | os.PathLike[str],
    args: Sequence[Any],
    num_workers: int,
    surroundings: Surroundings,
    ray: str | None,
    bundles: Bundles,
    *,
    max_restarts: int,
    timeout: float | None,
    metrics: str | None,
) -> list[Any]:
    devices = surroundings.devices_per_worker
    counts = [("num_workers", num_workers, 1), ("max_restarts", max_restarts, 0)]
    for name, value, least in (*counts, ("devices_per_worker", devices, 1)):
        if value is not None and value < least:
            raise UsageError.of(name, f"at least {least}", value)
    if timeout is not None and timeout <= 0:
        raise UsageError.of("timeout", "positive, or None for no limit", timeout)
    program, is_script = _program_of(fn_or_script, args)
    with ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(1 + num_workers)]
        if not is_script:
            call = fn_or_script if callable(fn_or_script) else str(fn_or_script)
            save_call(files[0], call, tuple(args))
        if not is_script and ray is None:
            inherited = tuple(file.fileno() for file in files)
            program = replace(program, args=tuple(map(str, inherited)), descriptors=inherited)
        results: Sequence[bytes] = ()
        with Signals().noted() as signals:
            if ray is None:
                cluster = local_cluster(program, {"worker": num_workers}, surroundings)
            else:
                files[0].seek(0)
                workers = RayWorkers(
                    ray,
                    in_this_folder(program) if is_script else program,
                    {"worker": num_workers},
                    bundles,
                    telling_secret(surroundings),
                    sink=Sink(),
                    signals=signals,
                    call=files[0].read(),
                    patience=timeout,
                )
                cluster, results = workers.cluster, workers.results
            sink, deadline = Sink(), time.monotonic() + (inf if timeout is None else timeout)
            with published(metrics, sink) as known:
                outcome = run_attempts(
                    cluster,
                    max_restarts=max_restarts,
                    sink=sink,
                    signals=signals,
                    rules=Rules(deadline=deadline, metrics=known),
                )
        _raise_for(outcome, timeout)
        for file, result in zip(files[1:], results, strict=False):  # others write it themselves
            _write(file, result)
        return [None if is_script else _read(file.fileno()) for file in files[1:]]


def _program_of(
    fn_or_script: Callable[..., Any] | str | os.PathLike[str], args: Sequence[Any]
) -> tuple[Program, bool]:
    """Return what the workers run, and whether that is the user's script."""
    is_script = not callable(fn_or_script) and not is_name(str(fn_or_script))
    program = Program(str(fn_or_script) if is_script else CALLED, tuple(map(str, args)))
    if is_script:
        program.check("run")
    return program, is_script


def _raise_for(outcome: Outcome, timeout: float | None) -> None:
    if outcome.signum:  # raised again as if it had just arrived: a KeyboardInterrupt, or the end
        signal.raise_signal(outcome.signum)
    if outcome.failure:
        raise outcome.failure
    if outcome.timed_out:
        raise ProcessesTimedOut(
            f"The workers had not ended after timeout={timeout} seconds, and were ended. See what "
            "they printed last, or pass a larger `timeout`."
        )
