"""The cluster of an instance group of Google Compute Engine, from its API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver
from replicax.cluster_resolver._fetch import Fetch, Request, fetch_json
from replicax.cluster_resolver._spec import ClusterSpec

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
        credentials: An access token; by default that of this machine's service account.
        environ: The variables to read; by default those of the process.
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
