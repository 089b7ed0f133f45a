"""`rx.launch.run`: a function or a script as several workers, from Python and notebooks.

`_payload.py` sends a function and its results.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from math import inf
from typing import IO, TYPE_CHECKING, Any

from replicax._core.errors import ProcessesTimedOut, UsageError
from replicax._processes.output import Notebook
from replicax._processes.rules import Rules, Signals
from replicax._processes.supervisor import run_attempts
from replicax.launch._payload import CALLED, is_name, load_results, save_call
from replicax.launch._plan import Program, Surroundings
from replicax.launch._ray import Bundles, RayWorkers
from replicax.launch._run import (
    check_program,
    in_this_folder,
    local_cluster,
    published,
    reporting,
    telling_secret,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from replicax._processes.rules import Outcome


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
    _check_counts(num_workers, max_restarts)
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
                cluster = local_cluster(program, num_workers, surroundings).cluster
            else:
                files[0].seek(0)
                workers = RayWorkers(
                    ray,
                    in_this_folder(program) if is_script else program,
                    {"worker": num_workers},
                    bundles,
                    telling_secret(surroundings),
                    sink=Notebook(),
                    signals=signals,
                    call=files[0].read(),
                    patience=timeout,
                )
                cluster, results = workers.cluster, workers.results
            sink, deadline = Notebook(), time.monotonic() + (inf if timeout is None else timeout)
            with published(metrics, sink) as known:
                outcome = run_attempts(
                    cluster,
                    max_restarts=max_restarts,
                    sink=sink,
                    signals=signals,
                    rules=Rules(deadline=deadline, metrics=known),
                )
        _raise_for(outcome, timeout)
        _keep(results, files[1:])
        return [None] * num_workers if is_script else load_results(files[1:])


def _program_of(
    fn_or_script: Callable[..., Any] | str | os.PathLike[str], args: Sequence[Any]
) -> tuple[Program, bool]:
    """Return what the workers run, and whether that is the user's script."""
    is_script = not callable(fn_or_script) and not is_name(str(fn_or_script))
    program = Program(str(fn_or_script if is_script else CALLED), tuple(map(str, args)))
    if is_script:
        check_program(program)
    return program, is_script


def _keep(results: Sequence[bytes], files: Sequence[IO[bytes]]) -> None:
    """Write what Ray's workers returned, if anything, to where others write it themselves."""
    for file, result in zip(files, results, strict=False):
        file.write(result)
        file.flush()


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


def _check_counts(num_workers: int, max_restarts: int) -> None:
    if num_workers < 1:
        raise UsageError.of("num_workers", "at least 1", num_workers)
    if max_restarts < 0:
        raise UsageError.of("max_restarts", "at least 0", max_restarts)
