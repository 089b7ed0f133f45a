"""The choice of a resolver by the environment in which this process was started."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from replicax._core.env import chips_on_bus
from replicax.cluster_resolver._cloud import (
    COMPLETION_INDEX,
    SERVICE_HOST,
    KubernetesClusterResolver,
)
from replicax.cluster_resolver._ranks import (
    PROCID,
    STEP_NODELIST,
    STEP_NUM_TASKS,
    MPIClusterResolver,
    SlurmClusterResolver,
    mpi_rank,
)
from replicax.cluster_resolver._tf_config import (
    CURRENT_HOST,
    HOSTS,
    TF_CONFIG,
    SageMakerClusterResolver,
    TFConfigClusterResolver,
)
from replicax.cluster_resolver._tpu import TPUClusterResolver
from replicax.cluster_resolver._tpu_slice import (
    NUM_SLICES,
    PROCESS_ADDRESSES,
    WORKER_HOSTNAMES,
)

if TYPE_CHECKING:
    from replicax.cluster_resolver._base import ClusterResolver

_Environ: TypeAlias = Mapping[str, str]


def detect(environ: Mapping[str, str] | None = None) -> ClusterResolver | None:
    """Choose the resolver for the cluster that the environment describes.

    `TF_CONFIG` comes first, because somebody wrote it. Then a Slurm step, an MPI launcher, a
    SageMaker training job, the hosts of a TPU that variables list, and a pod of an Indexed Job of
    Kubernetes; last, a machine with chips of a TPU. The resolver asks over the network, and checks
    the description, when it is asked; that of a TPU at once.

    Args:
        environ: The variables to read; by default `os.environ`.

    Returns:
        The resolver, or None if this process was started alone.

    Example:
        >>> from replicax.cluster_resolver import detect
        >>> type(detect({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})).__name__
        'MPIClusterResolver'
        >>> detect({})
    """
    variables = os.environ if environ is None else environ
    kind: Any
    if _is_tf_config(variables):
        kind = TFConfigClusterResolver
    elif _is_slurm_step(variables):
        kind = SlurmClusterResolver
    elif mpi_rank(variables) is not None:
        kind = MPIClusterResolver
    elif {HOSTS, CURRENT_HOST} <= variables.keys():
        kind = SageMakerClusterResolver
    # Before Kubernetes, because each of several slices is a Job of its own.
    elif _is_tpu_pod(variables):
        kind = TPUClusterResolver
    elif {SERVICE_HOST, COMPLETION_INDEX} <= variables.keys():
        kind = KubernetesClusterResolver
    elif environ is None and chips_on_bus() > 0:
        kind = TPUClusterResolver
    else:
        return None
    return kind(environ=environ)


def _is_tf_config(environ: _Environ) -> bool:
    """Whether `TF_CONFIG` describes a cluster, or is so wrong that its resolver must report it."""
    try:
        content = json.loads(environ.get(TF_CONFIG, "").strip() or "{}")
    except ValueError:
        return True
    return not isinstance(content, dict) or "cluster" in content


def _is_slurm_step(environ: _Environ) -> bool:
    if not {PROCID, STEP_NODELIST, STEP_NUM_TASKS} <= environ.keys():
        return False
    # `mpirun` in an allocation starts one helper per node with `srun`, and the ranks inherit the
    # helper's variables. They are of the step itself only if both count the same ranks.
    mpi = mpi_rank(environ)
    ours = (environ[PROCID], environ[STEP_NUM_TASKS])
    return mpi is None or ours == (str(mpi.rank), str(mpi.size))


def _is_tpu_pod(environ: _Environ) -> bool:
    hosts = environ.get(PROCESS_ADDRESSES) or environ.get(WORKER_HOSTNAMES, "")
    return "," in hosts or (bool(hosts) and environ.get(NUM_SLICES, "1") != "1")
