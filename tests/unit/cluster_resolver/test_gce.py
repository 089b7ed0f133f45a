"""Instance groups of Google Compute Engine; the API and the metadata server are a function."""

from __future__ import annotations

import pytest

from replicax import errors
from replicax.cluster_resolver import GCEClusterResolver

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
