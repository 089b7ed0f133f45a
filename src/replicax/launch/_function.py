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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.machinery import PathFinder
from typing import Any, NamedTuple

from replicax._core.errors import ProcessesTimedOut, UsageError, checks_types
from replicax._processes.output import Sink
from replicax._processes.rules import Outcome, Signals
from replicax.launch._plan import CALLED
from replicax.launch._run import Request, run_request


class Call(NamedTuple):
    function: Callable[..., Any]
    args: tuple[Any, ...]


def is_name(text: str) -> bool:
    """Whether the text is `module:function` and not a path."""
    return re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", text) is not None


def save_call(descriptor: int, function: Callable[..., Any] | str, args: tuple[Any, ...]) -> None:
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
    put(descriptor, pickle.dumps((list(sys.path), name, data)))


def load_call(descriptor: int) -> Call:
    """Read the call in a worker, which then imports from the same places as the caller."""
    path, name, data = pickle.loads(content(descriptor))
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
    put(descriptor, data)


def put(descriptor: int, data: bytes) -> None:
    """Replace the content of a file."""
    with open(descriptor, "r+b", closefd=False) as file:
        file.seek(0)
        file.truncate()
        file.write(data)


def content(descriptor: int) -> bytes:
    """The content of a file, whatever its offset is, which other processes share and move."""
    if not os.fstat(descriptor).st_size:
        return b""
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
        return data[:]


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
    ps: int | None = None,
    max_restarts: int | None = None,
    timeout: float | None = None,
    grace: float | None = None,
    env: Mapping[str, str] | None = None,
    ray: str | None = None,
    cpus_per_worker: float | None = None,
    gpus_per_worker: float | None = None,
    min_workers: int | None = None,
    pack: bool = False,
    log_dir: str | os.PathLike[str] | None = None,
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
        ps: How many parameter servers to start, too, with a chief. All of them run the function;
            workers and servers serve once they make a `ParameterServerStrategy`.
        max_restarts: How many times all are started again after a failure; 0 if None. With `ps`
            this is about the chief; each of the others is started again by itself, at most as
            many times, 3 if None.
        timeout: Seconds after which all are ended.
        grace: Seconds that workers have to end before they are killed; if None 5 after a failure
            or Ctrl-C, 30 after SIGTERM.
        env: More variables for the environment of every worker; `{"RX_JOIN": "0"}` if they use
            JAX without being connected.
        ray: The address of a Ray cluster that runs, or "auto", also in a Ray job or a Ray Tune
            trial: Ray places the workers. Modules that the function imports must be there.
        cpus_per_worker: How many cores each worker asks Ray for; 1 if None.
        gpus_per_worker: How many GPUs; none if None.
        min_workers: How few workers may start if Ray has no room for all; `num_workers` if None.
        pack: Whether Ray places workers on as few machines as possible, not on as many.
        log_dir: A folder where what each worker prints is written to a file, too.
        metrics: A port, "host:port" or a file, where Prometheus and `replicax top` read how
            training gets on; see docs/monitoring.md.

    Returns:
        What the function returned in each worker, in their order, or with `ps` in the chief alone.
        None for a script, and for a worker that Ray had no room for.

    Raises:
        ProcessFailed: If a worker failed. It has `rank`, `returncode` and `tail`, the last lines.
        ProcessesTimedOut: If the time was over.
        UsageError: If the function or its arguments cannot be sent, or arguments do not go
            together.
        ClusterSpecError: If there are GPUs, and fewer of them than workers.
        ClusterError: If Ray is not there, or has no room for the workers.

    Example:
        >>> import replicax as rx
        >>> rx.launch.run("math:sqrt", num_workers=2, devices_per_worker=1, args=[9.0])
        [3.0, 3.0]
    """
    counts = [("max_restarts", max_restarts, 0), ("num_workers", num_workers, 1), ("ps", ps, 1)]
    counts += [("devices_per_worker", devices_per_worker, 1), ("min_workers", min_workers, 1)]
    _check_ranges(counts, timeout)
    is_script = not callable(fn_or_script) and not is_name(str(fn_or_script))
    num_results = 1 if ps else num_workers
    with ExitStack() as opened:
        files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(1 + num_results)]
        numbers = tuple(file.fileno() for file in files)
        if not is_script:
            call = fn_or_script if callable(fn_or_script) else str(fn_or_script)
            save_call(numbers[0], call, tuple(args))
        request = Request(
            str(fn_or_script) if is_script else CALLED,
            [str(arg) for arg in (args if is_script else numbers)],
            workers=num_workers,
            ps=ps,
            devices_per_worker=devices_per_worker,
            ray=ray,
            cpus_per_worker=cpus_per_worker,
            gpus_per_worker=gpus_per_worker,
            min_workers=min_workers,
            pack=pack,
            env=env or {},
            max_restarts=max_restarts,
            grace=grace,
            log_dir=None if log_dir is None else str(log_dir),
            metrics=None if metrics is None else str(metrics),
            timeout=timeout,
            descriptors=() if is_script else numbers,
            is_shell=False,
        )
        with Signals().noted() as signals:
            outcome = run_request(request, os.environ, Sink(), signals)
        _raise_for(outcome, timeout)
        results = [content(number) for number in numbers[1:]]
        return [pickle.loads(result) if result else None for result in results]


def _check_ranges(counts: Sequence[tuple[str, int | None, int]], timeout: float | None) -> None:
    """Refuse counts below their least value, and a time that is over at once."""
    for name, value, least in counts:
        if value is not None and value < least:
            raise UsageError.of(name, f"at least {least}", value)
    if timeout is not None and timeout <= 0:
        raise UsageError.of("timeout", "positive, or None for no limit", timeout)


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
