"""Kubernetes and Google Compute Engine, whose APIs are functions here, and questions over HTTP."""

import http.server
import json
import socket
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from replicax import errors
from replicax.cluster_resolver import (
    GCEClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    Request,
    fetch_json,
)


class Service(http.server.BaseHTTPRequestHandler):
    """Answers with what it was asked; `/text`, `/refused` and `/slow` are special."""

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def answer(self, body=None):
        if self.path == "/slow":
            self.rfile.read(1)  # until the other side has given up
            return
        asked = {"path": self.path, "token": self.headers["Authorization"], "body": body}
        text = "10.0.0.7" if self.path == "/text" else json.dumps(asked)
        self.send_response(403 if self.path == "/refused" else 200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@contextmanager
def served(handler=Service):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_a_question_and_its_answer():
    with served() as service:
        answer = fetch_json(Request(f"{service}/pods", {"Authorization": "Bearer secret"}))
    assert answer == {"path": "/pods", "token": "Bearer secret", "body": None}


def test_a_body_is_sent_as_json():
    with served() as service:
        answer = fetch_json(Request(service, body={"state": "RUNNING"}))
    assert json.loads(answer["body"]) == {"state": "RUNNING"}


def test_an_answer_that_is_no_json_is_a_text():
    with served() as service:
        assert fetch_json(Request(f"{service}/text")) == "10.0.0.7"


def test_a_refusal():
    with served() as service, pytest.raises(errors.ClusterError, match="No answer from") as e:
        fetch_json(Request(f"{service}/refused", {"Authorization": "Bearer secret"}))
    assert "HTTP 403 Forbidden" in str(e.value)


def test_no_answer_in_time():
    with served() as service, pytest.raises(errors.ClusterError, match=r"within 0.1 s"):
        fetch_json(Request(f"{service}/slow"), timeout=0.1)


def test_nobody_there():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        with pytest.raises(errors.ClusterError, match=r"No answer from") as e:
            fetch_json(Request(url))
    assert url in str(e.value)


def test_certificates_that_are_not_there():
    request = Request("https://127.0.0.1:1", certificates=Path("missing.crt"))
    with pytest.raises(errors.ClusterError, match="No such file"):
        fetch_json(request)


def test_a_token_is_not_shown():
    assert "secret" not in repr(Request("http://a", {"Authorization": "Bearer secret"}))


METADATA = "http://metadata.google.internal/computeMetadata/v1/instance"
PLACE = "https://compute.googleapis.com/compute/v1/projects/p/zones/z"
PAGES = f"{PLACE}/instanceGroups/g/listInstances?orderBy=name"


def answers(*pages, here="10.0.0.2"):
    """An API that lists the instances (name, address) of each page."""
    found = {
        f"{METADATA}/service-accounts/default/token": {"access_token": "secret"},
        f"{METADATA}/network-interfaces/0/ip": here,
    }
    for number, page in enumerate(pages):
        url = f"{PAGES}&pageToken={number}" if number else PAGES
        found[url] = {"items": [{"instance": f"{PLACE}/instances/{name}"} for name, _ in page]}
        if number + 1 < len(pages):
            found[url]["nextPageToken"] = str(number + 1)
        for name, address in page:
            found[f"{PLACE}/instances/{name}"] = {"networkInterfaces": [{"networkIP": address}]}
    return found


def group(*pages, asked=None, here="10.0.0.2", **options):
    found = answers(*pages, here=here)

    def fetch(request):
        if asked is not None:
            asked.append(request)
        return found[request.url]

    return GCEClusterResolver("p", "z", "g", 8470, environ={}, fetch=fetch, **options)


def test_the_instances_are_sorted_by_address():
    resolver = group([("a", "10.0.0.3"), ("b", "10.0.0.1")], [("c", "10.0.0.2")])
    assert resolver.cluster_spec().as_dict() == {
        "worker": ["10.0.0.1:8470", "10.0.0.2:8470", "10.0.0.3:8470"]
    }
    assert resolver.task_type == "worker"
    assert resolver.rpc_layer == "grpc"


def test_a_machine_finds_its_number():
    resolver = group([("a", "10.0.0.1"), ("b", "10.0.0.2")])
    assert resolver.task_id == 1
    assert resolver.master() == "grpc://10.0.0.2:8470"


def test_a_machine_outside_of_the_group():
    with pytest.raises(errors.ClusterSpecError, match="instance group"):
        _ = group([("a", "10.0.0.1")], here="10.9.9.9").task_id


def test_the_task_can_be_given():
    resolver = group([("a", "10.0.0.1")], task_type="ps", task_id=0, rpc_layer=None)
    assert resolver.master() == "10.0.0.1:8470"
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)


def test_the_api_is_asked_for_running_instances_with_a_token():
    asked = []
    group([("a", "10.0.0.1")], asked=asked).cluster_spec()
    token, listing, instance = asked
    assert token.headers == {"Metadata-Flavor": "Google"}
    assert listing.body == {"instanceState": "RUNNING"}
    assert listing.headers == instance.headers == {"Authorization": "Bearer secret"}


def test_a_token_can_be_given():
    asked = []
    group([("a", "10.0.0.1")], asked=asked, credentials="mine").cluster_spec()
    assert {request.headers["Authorization"] for request in asked} == {"Bearer mine"}


def test_the_metadata_server_can_be_elsewhere():
    asked = []

    def fetch(request):
        asked.append(request.url)
        return {"access_token": "x"} if "metadata" in request.url.lower() else {}

    environ = {"GCE_METADATA_HOST": "127.0.0.1:80"}
    resolver = GCEClusterResolver("p", "z", "g", 1, environ=environ, fetch=fetch)
    with pytest.raises(errors.ClusterSpecError, match="No instance of the group"):
        resolver.cluster_spec()
    assert asked[0].startswith("http://127.0.0.1:80/computeMetadata/")


POD = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "JOB_COMPLETION_INDEX": "1",
    "HOSTNAME": "train-1",
}
API = "https://10.96.0.1:443"
JOB = {"completions": 3, "parallelism": 3, "template": {"spec": {"subdomain": "workers"}}}


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
