"""Starting the engine of a `ParameterServerStrategy`: a cluster, a client, a store."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import cloudpickle

from replicax._core.env import (
    JAX_PLATFORMS,
    OF_GPU_MEMORY,
    gpu_share_at_start,
    set_among,
)
from replicax._core.errors import UsageError
from replicax._core.machine.nvidia import shared_gpus
from replicax._core.machine.startup import grow_gpu_memory, is_started, nvidia_gpus
from replicax._ps.hosts.cluster import ROLES, Members, Size, environment_of_members, local_size
from replicax._ps.hosts.contact import Dialer
from replicax._ps.hosts.given_cluster import GivenCluster, serve_this_task_if_member
from replicax._ps.hosts.member import ThreadCluster
from replicax._ps.hosts.ray_cluster import RayCluster
from replicax._ps.hosts.started_cluster import StartedCluster
from replicax._ps.queue.coordination import Engine
from replicax._ps.queue.recovery import Recoveries
from replicax._ps.recording import install
from replicax._ps.server.server import scaling
from replicax._ps.store.servers import Client, SteadyClient
from replicax._ps.store.store import ServerStore
from replicax.cluster_resolver import detect

if TYPE_CHECKING:
    from replicax._ps.hosts.cluster import Cluster

PATIENCE = 120.0  # seconds for a member to come back, in a cluster that is started here

_PREFIX = "replicax-snapshots-"


def start(
    resolver: Any,
    partitioner: Any,
    *,
    num_workers: int | None,
    num_ps: int | None,
    engine: str | None,
    address: str | None,
    resources: Mapping[str, Mapping[str, float]] | None,
    settings: dict[str, Any],
    **kept: Any,
) -> Engine:
    """Start a cluster, or find the one that is there.

    `settings` are sent to servers; `keeping` explains `kept`.
    """
    install()
    scaling(settings["staleness_scaling"])
    _check_engine(engine, address, resources)
    size = _local(num_ps, num_workers)
    cluster: Any
    is_given = False
    if engine is None and address is None:
        resolver = cast("Any", resolver or detect())
        serve_this_task_if_member(resolver)
        is_given = bool(resolver and "ps" in resolver.cluster_spec().jobs)
    servers = resolver.cluster_spec().num_tasks("ps") if is_given else size.servers
    settings = {**settings, **keeping(num_servers=servers, **kept)}
    if engine == "threads":
        cluster = ThreadCluster(size.servers, size.workers)
    elif is_given:
        cluster = GivenCluster.described(resolver)
    elif address is not None:
        cluster = _on_ray(size, address, resources or {})
    else:
        cluster = _started(size)
    folder = name_folder(settings, getattr(cluster, "folder", None))
    if folder is not None and not is_given:  # its servers are killed with it
        weakref.finalize(cluster, shutil.rmtree, folder, ignore_errors=True)
    # If somebody else starts processes or machines, the cluster knows how long that may take.
    patience = None if is_given or address else PATIENCE
    meanwhile = isinstance(cluster, StartedCluster)
    return _engine(cluster, settings, partitioner, resolver, patience, meanwhile=meanwhile)


def _engine(
    cluster: Cluster,
    settings: dict[str, Any],
    partitioner: Any,
    resolver: Any,
    patience: float | None,
    *,
    meanwhile: bool,
) -> Engine:
    """The connections to a cluster, which may still start `meanwhile`."""
    code: list[bytes] = []

    def greeting() -> bytes:
        """The greeting of a member on a new connection: the settings, and the code so far."""
        return cloudpickle.dumps({**settings, "code": code})

    dial = Dialer(cluster.secret, settings["run"], {"role": "chief"}, greeting)
    client = Client(dial, [()] * cluster.num_servers)
    steady = SteadyClient(client)
    store = ServerStore(steady, partitioner, code)
    recoveries = Recoveries(
        cluster, client, steady.changes, replicas=bool(settings["replicas"]), patience=patience
    )
    platform = getattr(cluster, "platform", None)
    return Engine(
        cluster, dial, client, steady, store, recoveries, resolver, patience, meanwhile, platform
    )


def _local(num_ps: int | None, num_workers: int | None) -> Size:
    """The size of a cluster that is started here; by default it follows from the cores."""
    for name, count in [("num_ps", num_ps), ("num_workers", num_workers)]:
        if count is not None and count < 1:
            raise UsageError.of(name, "at least 1", count)
    usual = local_size(os.cpu_count() or 1)
    return Size(num_ps or usual.servers, num_workers or usual.workers, usual.threads)


def _check_engine(engine: str | None, address: str | None, resources: Any) -> None:
    if engine == "ray" and address is None:
        raise UsageError(
            "engine='ray' needs an `address`. Run `ray start --head` and pass `address='auto'`, "
            "or leave out `engine`."
        )
    if engine not in (None, "processes", "ray", "threads"):
        raise UsageError.of(
            "engine",
            "'processes', 'threads', or 'ray' with an `address`",
            engine,
            "Leave it out for processes.",
        )
    if address is not None and engine in ("processes", "threads"):
        raise UsageError(
            f"engine={engine!r} cannot use address={address!r}, which is for Ray. Leave out one of "
            "the two."
        )
    wrong = sorted(set(resources or ()) - set(ROLES))
    if wrong or (resources and address is None):
        raise UsageError(
            f"`resources` {f'has the unknown key {wrong[0]!r}' if wrong else 'needs `address`'}. "
            'Pass for example `address="auto", resources={"worker": {"CPU": 2, "GPU": 1}, '
            '"ps": {"CPU": 1}}`.'
        )


def _on_ray(size: Size, address: str, resources: Mapping[str, Mapping[str, float]]) -> RayCluster:
    """Members on a Ray cluster; those that ask for CPUs only compute on these."""

    def members(job: str, count: int) -> Members:
        own = resources.get(job, {"CPU": 1.0})
        accelerated = job == "worker" and any(own.get(name, 0) > 0 for name in ("GPU", "TPU"))
        # JAX chooses where it is empty, whatever the variable is for Ray itself.
        platforms = {JAX_PLATFORMS: "" if accelerated else "cpu"}
        return Members(count, environment=environment_of_members() | platforms, resources=own)

    return RayCluster(address, members("ps", size.servers), members("worker", size.workers))


def _started(size: Size) -> StartedCluster:
    """Processes that share the cores and the GPUs of this machine."""
    gpus = nvidia_gpus()
    on_cpu = {JAX_PLATFORMS: "cpu", **threads_of(size.threads)}
    workers = {JAX_PLATFORMS: "cuda,cpu"} if gpus else on_cpu
    return StartedCluster.start(
        Members(size.servers, environment=on_cpu),
        Members(size.workers, environment=workers, shares=_shares(size.workers, gpus)),
    )


def _shares(workers: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """The part of a GPU that each worker gets beside this process, which traces and looks on."""
    if not gpus:
        return []
    if not is_started():
        grow_gpu_memory(True)
    return shared_gpus(workers, gpus, set_among(OF_GPU_MEMORY), taken=gpu_share_at_start())


def threads_of(count: int) -> dict[str, str]:
    """Variables that limit the threads of JAX on a CPU; a limit above 1 is not possible.

    `NPROC` is the size of XLA's thread pool, which kernels of other libraries use, too.
    """
    if count > 1:
        return {}
    return {
        "NPROC": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }


def keeping(
    *,
    snapshot_dir: str | os.PathLike[str] | None,
    snapshot_seconds: float | None,
    replicas: int,
    num_servers: int,
) -> dict[str, Any]:
    """The settings of snapshots, and of how many replicas each server has on others.

    `snapshot_dir` is None for the folder of `name_folder`; `snapshot_seconds` None or 0 for no
    snapshots.
    """
    if snapshot_seconds is not None and snapshot_seconds < 0:
        raise UsageError.of(
            "snapshot_seconds", "at least 0", snapshot_seconds, "Pass None for no snapshots."
        )
    if replicas not in (0, 1):
        raise UsageError.of("replicas", "0 or 1", replicas)
    if replicas and num_servers < 2:
        raise UsageError(
            "replicas=1 needs at least two parameter servers, but there is one. Pass `num_ps=2`, "
            "or rely on snapshots."
        )
    return {
        "run": secrets.token_hex(8),
        "snapshot_dir": None if snapshot_dir is None else os.path.abspath(snapshot_dir),
        "snapshot_seconds": snapshot_seconds,
        "is_kept": snapshot_dir is not None,
        "replicas": replicas,
    }


def name_folder(settings: dict[str, Any], within: str | None = None) -> str | None:
    """Name a folder for snapshots if none was given: each server makes it on its machine.

    The name is entered into the settings. A server that hears of the end removes the folder.
    """
    if settings["snapshot_dir"] is not None or not settings["snapshot_seconds"]:
        return None
    folder = os.path.join(within or tempfile.gettempdir(), f"{_PREFIX}{settings['run']}")
    settings["snapshot_dir"] = folder
    return folder
