"""Kubernetes: the pods of an Indexed Job, and pods with labels; its API is played by a function."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from replicax import errors
from replicax.cluster_resolver import KubernetesClusterResolver, KubernetesExecutableLocation

POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "train-1",
}
API = "https://10.96.0.1:443"
JOB = {
    "completions": 3,
    "parallelism": 3,
    "template": {"spec": {"subdomain": "workers"}},
}


@pytest.fixture
def account(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("ml")
    return tmp_path


def answering(answers, asked=None):
    """An API that has these answers, by the part of the address behind its host."""

    def fetch(request):
        if asked is not None:
            asked.append(request)
        return answers[request.url.removeprefix(API)]

    return fetch


def of_job(account, job=JOB, **environ):
    return KubernetesClusterResolver(
        environ=POD | environ,
        fetch=answering({"/apis/batch/v1/namespaces/ml/jobs/train": {"spec": job}}),
        service_account=account,
    )


def pod(name, ip, phase="Running"):
    return {"metadata": {"name": name}, "status": {"phase": phase, "podIP": ip}}


def labelled(account, *pods, labels=None, **options):
    url = "/api/v1/namespaces/ml/pods?labelSelector=app%3Dtrain"
    return KubernetesClusterResolver(
        labels or {"worker": ["app=train"]},
        environ=POD,
        fetch=answering({url: {"items": list(pods)}}),
        service_account=account,
        **options,
    )


def test_the_pods_of_a_job_are_workers(account):
    resolver = of_job(account)
    assert resolver.cluster_spec().as_dict() == {
        "worker": ["train-0.workers:8470", "train-1.workers:8470", "train-2.workers:8470"]
    }
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "grpc://train-1.workers:8470"


def test_a_job_that_is_made_again_has_another_name(account):
    def name(uid):
        answer = {"spec": JOB, "metadata": {"uid": uid}}
        fetch = answering({"/apis/batch/v1/namespaces/ml/jobs/train": answer})
        resolver = KubernetesClusterResolver(environ=POD, fetch=fetch, service_account=account)
        return resolver.cluster_name()

    assert name("6f1c") == name("6f1c") != name("0a77")
    assert of_job(account).cluster_name()


def test_the_api_is_asked_with_the_token_of_the_pod(account):
    asked = []
    url = "/apis/batch/v1/namespaces/ml/jobs/train"
    fetch = answering({url: {"spec": JOB}}, asked)
    KubernetesClusterResolver(environ=POD, fetch=fetch, service_account=account).cluster_spec()
    (request,) = asked
    assert request.url == API + url
    assert request.headers == {"Authorization": "Bearer secret"}
    assert request.certificates == account / "ca.crt"


def test_the_api_at_an_ipv6_address(account):
    asked = []

    def fetch(request):
        asked.append(request.url)
        return {"spec": JOB}

    environ = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}
    KubernetesClusterResolver(environ=environ, fetch=fetch, service_account=account).cluster_spec()
    assert asked[0].startswith("https://[fd00::1]:443/apis/")


def test_a_job_without_a_subdomain(account):
    with pytest.raises(errors.ClusterSpecError, match="subdomain"):
        of_job(account, JOB | {"template": {"spec": {}}}).cluster_spec()


def test_a_job_whose_pods_do_not_run_together(account):
    with pytest.raises(errors.ClusterSpecError, match="parallelism") as e:
        of_job(account, JOB | {"parallelism": 2}).cluster_spec()
    assert "completions: 3 and parallelism: 2" in str(e.value)


def test_a_host_name_that_is_not_the_jobs(account):
    with pytest.raises(errors.ClusterSpecError, match="host name.*job_to_label_mapping"):
        of_job(account, HOSTNAME="node7").cluster_spec()


@pytest.mark.parametrize("name", sorted(set(POD) - {"KUBERNETES_SERVICE_PORT"}))
def test_outside_of_an_indexed_job(account, name):
    with pytest.raises(
        errors.ClusterSpecError, match=f"{name} is not set. It is set by Kubernetes"
    ):
        of_job(account, **{name: ""}).cluster_spec()


def test_labelled_pods_are_sorted_by_name(account):
    resolver = labelled(account, pod("b", "10.0.0.2"), pod("a", "10.0.0.3"), tf_server_port=99)
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.0.0.3:99", "10.0.0.2:99"]}
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    resolver.task_type, resolver.task_id = "worker", 1
    assert resolver.master() == "grpc://10.0.0.2:99"


def test_an_ipv6_address_is_put_into_brackets(account):
    assert labelled(account, pod("a", "fd00::5")).master("worker", 0) == "grpc://[fd00::5]:8470"


@pytest.mark.parametrize(
    ("phase", "ip"), [("Pending", None), ("Failed", "10.0.0.1"), ("Running", "")]
)
def test_a_pod_that_does_not_run(account, phase, ip):
    with pytest.raises(errors.ClusterError, match="Pod 'a'") as e:
        labelled(account, pod("a", ip, phase)).cluster_spec()
    assert f"Pod 'a' with the labels 'app=train' is {phase}" in str(e.value)


def test_the_python_client_lists_pods():
    def pods(label_selector):
        job, _, names = label_selector.partition("=")
        return SimpleNamespace(
            items=[
                SimpleNamespace(
                    metadata=SimpleNamespace(name=name),
                    status=SimpleNamespace(phase="Running", pod_ip=f"{job}-{name}"),
                )
                for name in names
            ]
        )

    resolver = KubernetesClusterResolver(
        {"worker": ["x=ba", "y=c"], "ps": ["z=d"]},
        override_client=SimpleNamespace(list_pod_for_all_namespaces=pods),
        executable_location=KubernetesExecutableLocation.OFF_CLUSTER,
    )
    assert resolver.cluster_spec().as_dict() == {
        "worker": ["x-a:8470", "x-b:8470", "y-c:8470"],
        "ps": ["z-d:8470"],
    }


def test_outside_of_kubernetes_a_client_is_needed():
    with pytest.raises(errors.ClusterSpecError, match="override_client"):
        KubernetesClusterResolver(executable_location=KubernetesExecutableLocation.OFF_CLUSTER)


def test_a_pod_without_a_service_account(tmp_path):
    with pytest.raises(errors.ClusterError, match="serviceAccountName"):
        of_job(tmp_path).cluster_spec()
