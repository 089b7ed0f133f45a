"""The tasks of a cluster, and the task of this process: `tf.distribute.cluster_resolver`.

The standard library only, and no JAX: a process must know its cluster before JAX starts.
"""

from replicax.cluster_resolver._base import ClusterResolver as ClusterResolver
from replicax.cluster_resolver._base import task_of as task_of
from replicax.cluster_resolver._cloud import GCEClusterResolver as GCEClusterResolver
from replicax.cluster_resolver._cloud import (
    KubernetesClusterResolver as KubernetesClusterResolver,
)
from replicax.cluster_resolver._cloud import (
    KubernetesExecutableLocation as KubernetesExecutableLocation,
)
from replicax.cluster_resolver._cloud import Request as Request
from replicax.cluster_resolver._cloud import fetch_json as fetch_json
from replicax.cluster_resolver._detect import detect as detect
from replicax.cluster_resolver._ranks import MPIClusterResolver as MPIClusterResolver
from replicax.cluster_resolver._ranks import SlurmClusterResolver as SlurmClusterResolver
from replicax.cluster_resolver._simple import SimpleClusterResolver as SimpleClusterResolver
from replicax.cluster_resolver._simple import UnionResolver as UnionResolver
from replicax.cluster_resolver._spec import ClusterSpec as ClusterSpec
from replicax.cluster_resolver._spec import JaxProcess as JaxProcess
from replicax.cluster_resolver._spec import Task as Task
from replicax.cluster_resolver._spec import cluster_name as cluster_name
from replicax.cluster_resolver._spec import id_in_cluster as id_in_cluster
from replicax.cluster_resolver._spec import is_chief as is_chief
from replicax.cluster_resolver._spec import jax_process as jax_process
from replicax.cluster_resolver._spec import worker_count as worker_count
from replicax.cluster_resolver._tf_config import (
    SageMakerClusterResolver as SageMakerClusterResolver,
)
from replicax.cluster_resolver._tf_config import TFConfig as TFConfig
from replicax.cluster_resolver._tf_config import (
    TFConfigClusterResolver as TFConfigClusterResolver,
)
from replicax.cluster_resolver._tpu import TPUClusterResolver as TPUClusterResolver
from replicax.cluster_resolver._tpu import TPUSystemMetadata as TPUSystemMetadata
