"""SageMaker's training jobs."""

from __future__ import annotations

import pytest

from replicax import errors
from replicax.cluster_resolver import SageMakerClusterResolver

JOB = {"SM_HOSTS": '["algo-2", "algo-1"]', "SM_CURRENT_HOST": "algo-2"}


def test_the_hosts_are_workers():
    resolver = SageMakerClusterResolver(environ=JOB)
    assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2223", "algo-2:2223"]}
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, None)
    assert resolver.master() == "algo-2:2223"
    assert resolver.environment is None


def test_arguments():
    resolver = SageMakerClusterResolver(1234, "worker", 0, "grpc", "google", environ=JOB)
    assert resolver.master() == "grpc://algo-1:1234"
    assert resolver.master("worker", 1, "test") == "test://algo-2:1234"
    assert resolver.environment == "google"


def test_a_single_host_has_no_master():
    environ = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    resolver = SageMakerClusterResolver(environ=environ)
    assert resolver.master() == ""
    assert resolver.cluster_spec().as_dict() == {"worker": ["algo-1:2223"]}


def test_gpus():
    assert SageMakerClusterResolver(environ=JOB).num_accelerators() == {}
    some = {**JOB, "SM_NUM_GPUS": "8"}
    assert SageMakerClusterResolver(environ=some).num_accelerators() == {"GPU": 8}
    assert SageMakerClusterResolver(environ={**JOB, "SM_NUM_GPUS": "0"}).num_accelerators() == {}


@pytest.mark.parametrize("hosts", ["algo-1", "{}", "3"])
def test_hosts_that_are_no_list(hosts):
    with pytest.raises(errors.ClusterSpecError, match="`SM_HOSTS`.* JSON list"):
        SageMakerClusterResolver(environ={**JOB, "SM_HOSTS": hosts}).cluster_spec()


def test_a_host_that_is_not_in_the_list():
    resolver = SageMakerClusterResolver(environ={**JOB, "SM_CURRENT_HOST": "algo-3"})
    with pytest.raises(errors.ClusterSpecError, match="SM_CURRENT_HOST.*'algo-3'"):
        _ = resolver.task_id


@pytest.mark.parametrize("environ", [{}, {"SM_HOSTS": ""}])
def test_outside_of_a_training_job(environ):
    with pytest.raises(
        errors.ClusterSpecError, match="SM_HOSTS is not set. It is set by SageMaker"
    ):
        SageMakerClusterResolver(environ=environ).cluster_spec()
