"""Settings of the whole program: its cluster, the compilation cache, the tuning for CPUs."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicax._core.errors import ClusterSpecError
from replicax._core.machine import compilation_cache as _cache
from replicax._core.options import CommunicationOptions
from replicax._cpu import tuning
from replicax._mesh.processes import start
from replicax.cluster_resolver import ClusterResolver, ClusterSpec, SimpleClusterResolver

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager
    from pathlib import Path


def experimental_connect_to_cluster(
    cluster_spec_or_resolver: ClusterResolver | ClusterSpec,
    job_name: str = "localhost",
    task_index: int = 0,
    protocol: str | None = None,
    make_master_device_default: bool = True,
    cluster_device_filters: object = None,
) -> None:
    """Join the cluster that a resolver describes, for strategies made from it afterwards.

    **Differs from TF:** the program runs on every host of the cluster. No process drives the
    others from outside.

    Args:
        cluster_spec_or_resolver: A resolver, or a `ClusterSpec` with `job_name` and `task_index`.
        job_name: The job of this process, for a `ClusterSpec`.
        task_index: The number of this process in its job, for a `ClusterSpec`.
        protocol: Ignored.
        make_master_device_default: Ignored.
        cluster_device_filters: Ignored.

    Raises:
        ClusterSpecError: If the description cannot be used.
        BackendAlreadyInitialized: If there are several hosts, and JAX was used before.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(tpu="auto", fallback=("cpu",))
        >>> rx.config.experimental_connect_to_cluster(resolver)
    """
    del protocol, make_master_device_default, cluster_device_filters
    given = cluster_spec_or_resolver
    if isinstance(given, ClusterSpec):
        given = SimpleClusterResolver(given, task_type=job_name, task_id=task_index)
    if "ps" in given.cluster_spec().jobs:
        return  # ParameterServerStrategy connects its workers itself
    start(given, CommunicationOptions())


def experimental_connect_to_host(
    remote_host: str | Sequence[str] | None = None, job_name: str = "worker"
) -> None:
    """Join the hosts with these addresses; this machine is one of them.

    **Differs from TF:** every host runs the program; no host is driven from outside.

    Args:
        remote_host: The addresses, such as `["host0:2222", "host1:2222"]`.
        job_name: The job of the hosts, `"worker"`.

    Raises:
        ClusterSpecError: If not exactly one of the addresses is this machine's.
        BackendAlreadyInitialized: If there are several hosts, and JAX was used before.

    Example:
        >>> import replicax as rx
        >>> rx.config.experimental_connect_to_host("localhost:2222")
    """
    text = (remote_host or ()) if not isinstance(remote_host, str) else (remote_host,)
    hosts = [host.removeprefix("grpc://") for host in text]
    own = _own_names()
    mine = [number for number, host in enumerate(hosts) if (host.rpartition(":")[0] or host) in own]
    if len(mine) != 1:
        raise ClusterSpecError(
            f"{len(mine)} of the hosts {hosts} are this machine, {socket.gethostname()!r}; exactly "
            "one must be. Pass the address of each host once, or pass a resolver to "
            "experimental_connect_to_cluster."
        )
    resolver = SimpleClusterResolver({job_name: hosts}, task_type=job_name, task_id=mine[0])
    start(resolver, CommunicationOptions())


def _own_names() -> set[str]:
    """The names and addresses of this machine."""
    name = socket.gethostname()
    try:
        addresses = {str(found[4][0]) for found in socket.getaddrinfo(name, None)}
    except OSError:
        addresses = set[str]()
    return {"localhost", "127.0.0.1", "[::1]", name, name.partition(".")[0], *addresses}


def cpu_tuning(enabled: bool) -> AbstractContextManager[object]:
    """Switch the tuning for CPUs on or off. It is on by default.

    XLA computes some operations slowly on CPUs. Replicax replaces those that it has measured, with
    the same results. Nothing changes on GPUs and TPUs. `RX_CPU_TUNING=0` in the environment is the
    same as `cpu_tuning(False)`; docs/cpu.md has the parts and the measurements.

    The switch applies to programs that are compiled later. One part is not switched back: from the
    first strategy or program for CPUs to the end of the process, the C library keeps freed memory
    for the next step.

    Args:
        enabled: Whether the tuning is on.

    Returns:
        A context manager that restores the former setting at its end.

    Example:
        >>> import replicax as rx
        >>> with rx.config.cpu_tuning(False):
        ...     double = rx.function(lambda x: 2 * x)
        ...     print(double(4.0))  # compiled by plain JAX
        8.0
    """
    return tuning.choose(tuning.PARTS if enabled else ())


def compilation_cache(folder: str | os.PathLike[str] | bool | None = None) -> Path | None:
    """Keep compiled programs on disk, so that the next start of a program compiles nothing.

    Without this call, programs are kept from the first strategy on, in the folder of
    `RX_COMPILATION_CACHE`, or else in `replicax` in the user's cache folder; `off` keeps none. The
    folder holds up to 1 GiB and 300 programs; the least recently used are deleted first. Processes
    may share a folder. Only this call changes a `jax_compilation_cache_dir` that the user has set.

    Nobody else may be able to write to the folder, because the programs in it are executed.

    Args:
        folder: The folder. None for the folder without this call, or for the user's cache
            folder if `RX_COMPILATION_CACHE` is `off`. False for no folder.

    Returns:
        The folder with the programs for this kind of CPU, or None.

    Raises:
        UsageError: If this user cannot write there, or others can.

    Example:
        >>> import tempfile
        >>> import replicax as rx
        >>> rx.config.compilation_cache(tempfile.mkdtemp()).name.startswith("cpu-")
        True
        >>> rx.config.compilation_cache(False)
    """
    return _cache.choose(folder)
