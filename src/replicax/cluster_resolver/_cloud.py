"""The clusters of Kubernetes and of Google Compute Engine, from their APIs over HTTP."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final
from urllib.parse import quote

from replicax._core.errors import ClusterError, ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver, number_of, text_of
from replicax.cluster_resolver._spec import ClusterSpec, of_run

_TIMEOUT = 5.0  # seconds
_SHOWN = 200  # characters of an answer that is not understood


@final
@dataclass(frozen=True)
class Request:
    """One question over HTTP.

    Args:
        url: The address.
        headers: Other headers that the service wants, such as a token.
        body: The content, sent as JSON by POST.
        certificates: The file with the authorities to trust, instead of the system's.

    Example:
        >>> from replicax.cluster_resolver import Request
        >>> Request("http://metadata.google.internal", {"Metadata-Flavor": "Google"}).body
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    body: Mapping[str, str] | None = None
    certificates: Path | None = None


Fetch: TypeAlias = Callable[[Request], Any]


def fetch_json(request: Request, timeout: float = _TIMEOUT) -> Any:
    """The service's answer, decoded if it is JSON, else as text.

    Args:
        request: The question.
        timeout: Seconds to wait for the connection, and for each part of the answer.

    Raises:
        ClusterError: If there is no answer in time, or a refusal.
    """
    # Not at the top: they import TLS, which takes longer than all resolvers together.
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    data = None if request.body is None else json.dumps(request.body).encode()
    headers = {"Accept": "application/json", "Content-Type": "application/json", **request.headers}
    question = urllib.request.Request(request.url, data, headers)
    try:
        trusted = request.certificates
        context = ssl.create_default_context(cafile=str(trusted)) if trusted else None
        with urllib.request.urlopen(question, timeout=timeout, context=context) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            reason = error.read(_SHOWN).decode(errors="replace")
        raise ClusterError(
            f"No answer from {request.url}: HTTP {error.code} {error.reason}: {reason} Give the "
            "process the right to ask (401, 403), or correct the name (404)."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ClusterError(
            f"No answer from {request.url} within {timeout} s: {error}. Check that the program "
            "runs inside that platform, or describe the cluster in TF_CONFIG."
        ) from None
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
COMPLETION_INDEX = "JOB_COMPLETION_INDEX"

_POD = "Kubernetes, in every pod"
_INDEXED = "Kubernetes, in the pods of a Job with `completionMode: Indexed`"
_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubernetesExecutableLocation(enum.Enum):
    """Whether the program runs in a pod of the cluster.

    Example:
        >>> from replicax.cluster_resolver import KubernetesExecutableLocation
        >>> KubernetesExecutableLocation.WITHIN_CLUSTER.value
        0
    """

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


@final
class KubernetesClusterResolver(ClusterResolver):
    """The pods of an Indexed Job as workers, or pods chosen by labels.

    Without labels, the pod must belong to an Indexed Job whose pods have a `subdomain`, the name
    of a headless Service. Then the Job itself says how many workers there are, their names are
    known before the pods run, and `JOB_COMPLETION_INDEX` is the number of this one.

    **Differs from TF:** the package `kubernetes` is not needed; pods are looked for in this pod's
    namespace only; a pod's own address is used, not the address of its machine, which pods share.

    Args:
        job_to_label_mapping: For each job the label selectors of its pods, such as
            `{"worker": ["app=train"]}`. Then `task_type` and `task_id` have to be set.
        tf_server_port: The port of every task.
        rpc_layer: The protocol of `master()`.
        override_client: A `kubernetes.client.CoreV1Api` to list labelled pods with.
        executable_location: `OFF_CLUSTER` is possible with `override_client` only.
        environ: The variables to read; by default `os.environ`.
        fetch: Asks the API; by default over HTTPS with a time-out of 5 seconds.
        service_account: The folder with this pod's token, namespace and certificates.

    Raises:
        ClusterSpecError: If the arguments do not fit, or at any question, if the pods do not.
        ClusterError: At any question, if the API does not answer, or a pod does not run.

    Example:
        >>> from replicax.cluster_resolver import KubernetesClusterResolver
        >>> environ = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1"}
        >>> KubernetesClusterResolver(environ=environ).task_id
        1
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
        *,
        environ: Mapping[str, str] | None = None,
        fetch: Fetch = fetch_json,
        service_account: Path = _ACCOUNT,
    ) -> None:
        outside = executable_location is KubernetesExecutableLocation.OFF_CLUSTER
        if outside and override_client is None:
            raise ClusterSpecError(
                "`override_client` is missing, which must be logged in for OFF_CLUSTER. Pass "
                "override_client=kubernetes.client.CoreV1Api()."
            )
        self._labels = job_to_label_mapping
        self._port = tf_server_port
        self._rpc_layer = rpc_layer
        self._client = override_client
        self._environ = environ
        self._fetch = fetch
        self._service_account = service_account

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the Job's pods, or of the pods with the labels."""
        if self._labels is None:
            return self._spec_of_job()
        return ClusterSpec(
            {
                job: [address for selector in selectors for address in self._labelled(selector)]
                for job, selectors in self._labels.items()
            }
        )

    def _found_task(self) -> tuple[str | None, int | None]:
        if self._labels is not None:
            return None, None
        return "worker", number_of(self._variables(), COMPLETION_INDEX, set_by=_INDEXED)

    def _spec_of_job(self) -> ClusterSpec:
        environ = self._variables()
        index = number_of(environ, COMPLETION_INDEX, set_by=_INDEXED)
        hostname = text_of(environ, "HOSTNAME", set_by=_POD)
        job = hostname.removesuffix(f"-{index}")
        if job == hostname:
            raise ClusterSpecError(
                f"The host name {hostname!r} does not end with the pod's index {index}, so the "
                "name of its Job is unknown. Leave out `hostname` and `hostNetwork` in the pod "
                "template, or pass job_to_label_mapping."
            )
        found = self._ask("apis/batch/v1", f"jobs/{quote(job)}")
        workers = _addresses_of_job(job, found["spec"], self._port)
        return of_run({"worker": workers}, str(found.get("metadata", {}).get("uid", "")))

    def _labelled(self, selector: str) -> list[str]:
        if self._client is not None:
            pods = self._client.list_pod_for_all_namespaces(label_selector=selector).items
            found = [(p.metadata.name, p.status.phase, p.status.pod_ip) for p in pods]
        else:
            pods = self._ask("api/v1", f"pods?labelSelector={quote(selector)}")["items"]
            found = [
                (p["metadata"]["name"], p["status"]["phase"], p["status"].get("podIP"))
                for p in pods
            ]
        return [self._address_of(pod, selector) for pod in sorted(found)]

    def _address_of(self, pod: tuple[str, str, str | None], selector: str) -> str:
        name, phase, ip = pod
        if phase != "Running" or not ip:
            raise ClusterError(
                f"Pod {name!r} with the labels {selector!r} is {phase}, not Running, so it has no "
                "address. Wait until it runs, or delete it."
            )
        return f"[{ip}]:{self._port}" if ":" in ip else f"{ip}:{self._port}"

    def _ask(self, group: str, what: str) -> Any:
        environ = self._variables()
        host = text_of(environ, SERVICE_HOST, set_by=_POD)
        host = f"[{host}]" if ":" in host else host
        port = environ.get("KUBERNETES_SERVICE_PORT", "443")
        url = f"https://{host}:{port}/{group}/namespaces/{self._secret('namespace')}/{what}"
        headers = {"Authorization": f"Bearer {self._secret('token')}"}
        return self._fetch(Request(url, headers, certificates=self._service_account / "ca.crt"))

    def _secret(self, name: str) -> str:
        try:
            return (self._service_account / name).read_text().strip()
        except OSError as error:
            raise ClusterError(
                f"Cannot read the pod's service account: {error}. Set serviceAccountName and leave "
                "automountServiceAccountToken on, or describe the cluster in TF_CONFIG."
            ) from None


def _addresses_of_job(job: str, spec: Mapping[str, Any], port: int) -> list[str]:
    """The addresses of an Indexed Job's pods, which are known before the pods run."""
    subdomain = spec["template"]["spec"].get("subdomain")
    if not subdomain:
        raise ClusterSpecError(
            f"The pod template of Job {job!r} has no subdomain, so its pods have no names. Make a "
            "Service with `clusterIP: None` and put its name into spec.template.spec.subdomain."
        )
    pods, at_once = int(spec["completions"]), int(spec["parallelism"])
    if at_once < pods:
        raise ClusterSpecError(
            f"Job {job!r} has completions: {pods} and parallelism: {at_once}, so some pods would "
            "wait for the others. Set both to the same number."
        )
    return [f"{job}-{index}.{subdomain}:{port}" for index in range(pods)]


_API = "https://compute.googleapis.com/compute/v1"
_METADATA_HOST = "GCE_METADATA_HOST"  # as in Google's own libraries


@final
class GCEClusterResolver(ClusterResolver):
    """The running instances of an instance group, as the tasks of one job.

    **Differs from TF:** Google's client libraries are not needed, so there is no `service`. By
    default `task_id` is found by this machine's address; TensorFlow takes 0 on every machine.

    Args:
        project: The name of the project.
        zone: The zone of the group.
        instance_group: The name of the group.
        port: The port of every task.
        task_type: The job of the instances.
        task_id: The number of this instance; by default its place among the sorted addresses.
        rpc_layer: The protocol of `master()`.
        credentials: An access token; by default from this machine's service account.
        environ: The variables to read; by default `os.environ`.
        fetch: Asks the API; by default over HTTPS with a time-out of 5 seconds.

    Raises:
        ClusterSpecError: At any question, if the group has no running instance, or not this one.
        ClusterError: At any question, if the API does not answer.

    Example:
        >>> from replicax.cluster_resolver import GCEClusterResolver
        >>> answers = {"listInstances": {"items": [{"instance": ".../vm-a"}]},
        ...            "vm-a": {"networkInterfaces": [{"networkIP": "10.0.0.2"}]}}
        >>> def fetch(request):
        ...     return answers[request.url.rpartition("/")[2].partition("?")[0]]
        >>> resolver = GCEClusterResolver(
        ...     "project", "zone", "group", 8470, credentials="token", fetch=fetch)
        >>> resolver.cluster_spec()
        ClusterSpec({'worker': ['10.0.0.2:8470']})
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int | None = None,
        rpc_layer: str | None = "grpc",
        credentials: str = "default",
        *,
        environ: Mapping[str, str] | None = None,
        fetch: Fetch = fetch_json,
    ) -> None:
        self._place = f"{_API}/projects/{project}/zones/{zone}"
        self._instance_group = instance_group
        self._port = port
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._credentials = credentials
        self._environ = environ
        self._fetch = fetch

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the instances that run now, sorted."""
        addresses = self._addresses()
        job = self._task_type or "worker"
        return ClusterSpec({job: [f"{address}:{self._port}" for address in addresses]})

    def _found_task(self) -> tuple[str | None, int | None]:
        here = str(self._metadata("network-interfaces/0/ip"))
        addresses = self._addresses()
        if here not in addresses:
            raise ClusterSpecError(
                f"This machine's address {here} is not in the instance group, which has "
                f"{addresses}. Add the machine to the group, or pass task_id."
            )
        return None, addresses.index(here)

    def _addresses(self) -> list[str]:
        headers = {"Authorization": f"Bearer {self._token()}"}
        names = self._names(headers)
        urls = [f"{self._place}/instances/{name}" for name in names]
        instances = [self._fetch(Request(url, headers)) for url in urls]
        return sorted(instance["networkInterfaces"][0]["networkIP"] for instance in instances)

    def _names(self, headers: Mapping[str, str]) -> list[str]:
        """The names of the running instances, from all pages of the answer."""
        url = f"{self._place}/instanceGroups/{self._instance_group}/listInstances?orderBy=name"
        names: list[str] = []
        page: str | None = ""
        while page is not None:
            where = f"{url}&pageToken={page}" if page else url
            answer = self._fetch(Request(where, headers, {"instanceState": "RUNNING"}))
            names += [item["instance"].rpartition("/")[2] for item in answer.get("items", [])]
            page = answer.get("nextPageToken")
        if not names:
            raise ClusterSpecError(
                f"No instance of the group {self._instance_group!r} is running. Start the group's "
                "instances."
            )
        return names

    def _token(self) -> str:
        if self._credentials != "default":
            return self._credentials
        return str(self._metadata("service-accounts/default/token")["access_token"])

    def _metadata(self, what: str) -> Any:
        host = self._variables().get(_METADATA_HOST, "metadata.google.internal")
        url = f"http://{host}/computeMetadata/v1/instance/{what}"
        return self._fetch(Request(url, {"Metadata-Flavor": "Google"}))
