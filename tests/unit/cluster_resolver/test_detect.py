"""Which resolver fits an environment."""

import pytest

from replicax.cluster_resolver import (
    KubernetesClusterResolver,
    MPIClusterResolver,
    SageMakerClusterResolver,
    SlurmClusterResolver,
    TFConfigClusterResolver,
    detect,
)

TF_CONFIG = {"TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}}'}
SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
SAGEMAKER = {"SM_HOSTS": '["a", "b"]', "SM_CURRENT_HOST": "b"}
KUBERNETES = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "train-1",
}


@pytest.mark.parametrize(
    ("environ", "kind"),
    [
        (TF_CONFIG, TFConfigClusterResolver),
        (SLURM, SlurmClusterResolver),
        (MPI, MPIClusterResolver),
        (PMI, MPIClusterResolver),
        (SAGEMAKER, SageMakerClusterResolver),
        (KUBERNETES, KubernetesClusterResolver),
        (KUBERNETES | SAGEMAKER | MPI | SLURM | TF_CONFIG, TFConfigClusterResolver),
        (KUBERNETES | MPI, MPIClusterResolver),
        ({"TF_CONFIG": "{}"} | MPI, MPIClusterResolver),
        ({"TF_CONFIG": "broken"} | MPI, TFConfigClusterResolver),
        ({"TF_CONFIG": "[]"} | MPI, TFConfigClusterResolver),
    ],
)
def test_the_resolver_of_an_environment(environ, kind):
    assert type(detect(environ)) is kind


@pytest.mark.parametrize("environ", [TF_CONFIG, SLURM, MPI, SAGEMAKER], ids=lambda e: min(e))
def test_the_resolver_reads_the_environment_that_was_given(environ):
    assert detect(environ).cluster_spec().num_tasks("worker") == 2


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"TF_CONFIG": ""},
        {"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # sbatch without srun
        {"PMIX_RANK": "0"},
        {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},  # any pod
        {"SM_CURRENT_HOST": "a"},
    ],
)
def test_a_process_that_was_started_alone(environ):
    assert detect(environ) is None


def test_srun_with_pmi_is_slurm():
    # `srun --mpi=pmi2` sets both; Slurm knows the hosts.
    assert type(detect(SLURM | PMI)) is SlurmClusterResolver


def test_mpirun_in_an_allocation_is_mpi():
    # The ranks inherit the variables of the step that mpirun started its helpers with.
    helpers = SLURM | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert type(detect(helpers | MPI)) is MPIClusterResolver


def test_the_environment_of_the_process_is_the_default(monkeypatch):
    for name in (*SLURM, *MPI, *PMI, *SAGEMAKER, *KUBERNETES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert detect() is None
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG["TF_CONFIG"])
    resolver = detect()
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    assert resolver.cluster_spec().num_tasks("worker") == 1  # read when it is asked
