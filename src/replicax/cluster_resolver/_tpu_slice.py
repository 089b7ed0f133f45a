"""A TPU as its host sees it: by variables and the metadata server.

Nothing here starts JAX, which could not join a cluster afterwards. The rules are JAX's own, so that
both find the same hosts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from replicax._core.errors import ClusterError, ClusterSpecError
from replicax.cluster_resolver._base import number_of, text_of
from replicax.cluster_resolver._cloud import Fetch, Request

PROCESS_ADDRESSES = "TPU_PROCESS_ADDRESSES"
WORKER_HOSTNAMES = "TPU_WORKER_HOSTNAMES"
NUM_SLICES = "MEGASCALE_NUM_SLICES"

_WORKER_ID = "TPU_WORKER_ID"
_NAME = "TPU_NAME"
_TYPE = "TPU_ACCELERATOR_TYPE"
_BOUNDS = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")
_SET_BY = "GKE in the pods of a TPU node pool, or by hand"
_PORT = 8482  # the port at which JAX, too, lets the processes of a TPU meet
# The generations whose chips are two devices to JAX; on all others a chip is one.
_TWO_DEVICES = ("v2", "v3", "tpu7x")


@final
@dataclass(frozen=True)
class TpuSlice:
    """A TPU as one of its hosts sees it; what nothing says is empty, or 0 chips.

    `hosts` are the addresses of this slice's hosts, by number; `worker` is the number of this one.
    `slices` train together, of which `coordinator` is the first host; `slice_id` is this slice.
    `kind` is a type such as `v5litepod-16`. `chips` are on this host.
    """

    hosts: tuple[str, ...] = ()
    worker: int = 0
    slices: int = 1
    slice_id: int = 0
    coordinator: str = ""
    chips: int = 0
    kind: str = ""
    name: str = ""

    @property
    def num_hosts(self) -> int:
        """The hosts of all slices."""
        return max(1, len(self.hosts)) * self.slices

    @property
    def number(self) -> int:
        """The number of this host among the hosts of all slices."""
        return self.slice_id * max(1, len(self.hosts)) + self.worker

    @property
    def devices(self) -> int:
        """The number of JAX's devices on this host, as far as it is known."""
        return self.chips * (2 if self.kind.startswith(_TWO_DEVICES) else 1)

    def addresses(self) -> dict[int, str]:
        """The hosts' addresses by number; of other slices only the first host is known."""
        first = self.slice_id * len(self.hosts)
        known = {first + number: host for number, host in enumerate(self.hosts)}
        return {0: self.coordinator, **known} if self.coordinator else known


def slice_of(variables: Mapping[str, str], chips: int) -> TpuSlice:
    """The TPU that environment variables describe; they may leave out the `chips` of this host."""
    name = PROCESS_ADDRESSES if variables.get(PROCESS_ADDRESSES) else WORKER_HOSTNAMES
    hosts = _with_ports([_host_of(text) for text in variables[name].split(",")])
    slices = number_of(variables, NUM_SLICES, set_by=_SET_BY) if variables.get(NUM_SLICES) else 1
    coordinator, slice_id = "", 0
    if slices > 1:
        slice_id = number_of(variables, "MEGASCALE_SLICE_ID", set_by=_SET_BY)
        place = text_of(variables, "MEGASCALE_COORDINATOR_ADDRESS", set_by=_SET_BY)
        coordinator = f"{_host_of(place)}:{_PORT}"
    worker = _worker_of(variables) if len(hosts) > 1 else 0
    _check_number(worker, len(hosts), name, slice_id, slices)
    return TpuSlice(
        hosts,
        worker,
        slices,
        slice_id,
        coordinator,
        _chips_of(variables) or chips,
        variables.get(_TYPE, ""),
        variables.get(_NAME, ""),
    )


def at_addresses(text: str, variables: Mapping[str, str]) -> TpuSlice:
    """The TPU whose hosts have these addresses: `grpc://host:port`, or several with commas."""
    places = [place.strip().removeprefix("grpc://") for place in text.split(",")]
    hosts = _with_ports([_host_of(place) for place in places])
    given = tuple(
        place if _has_port(place) else host for place, host in zip(places, hosts, strict=True)
    )
    worker = _worker_of(variables) if len(given) > 1 else 0
    _check_number(worker, len(given), "the argument tpu", 0, 1)
    return TpuSlice(given, worker, chips=_chips_of(variables), kind=variables.get(_TYPE, ""))


def from_metadata(ask: Callable[[str], Any]) -> dict[str, str]:
    """The facts of a TPU VM's metadata server, under the names of the variables."""
    known = {
        _WORKER_ID: str(ask("agent-worker-number")).strip(),
        WORKER_HOSTNAMES: str(ask("worker-network-endpoints")).strip(),
    }
    names = {
        "ACCELERATOR_TYPE": _TYPE,
        "NODE_ID": _NAME,
        "CHIPS_PER_HOST_BOUNDS": "TPU_CHIPS_PER_HOST_BOUNDS",
    }
    for line in str(ask("tpu-env")).splitlines():
        key, colon, value = line.partition(":")
        key = key.strip()
        if colon and (key in names or key.startswith("MEGASCALE_")):
            known[names.get(key, key)] = value.strip().strip("'\"")
    return known


def ask_metadata(variables: Mapping[str, str], fetch: Fetch) -> tuple[dict[str, str], str]:
    """The metadata server's answer, or nothing; and a sentence on how it came or failed."""
    host = variables.get("GCE_METADATA_HOST") or variables.get("GCE_METADATA_IP")
    place = f"http://{host or 'metadata.google.internal'}/computeMetadata/v1/instance/attributes"
    flavor = {"Metadata-Flavor": "Google"}
    try:
        known = from_metadata(lambda key: fetch(Request(f"{place}/{key}", flavor)))
        return known, f"{place}: answered"
    except ClusterError as error:
        return {}, str(error).partition(". ")[0]


def _check_number(worker: int, hosts: int, listed_in: str, slice_id: int, slices: int) -> None:
    if worker >= hosts or slice_id >= slices:
        raise ClusterSpecError(
            f"Worker {worker} of slice {slice_id} is not among the {hosts} hosts in {listed_in} "
            f"and the {slices} slices. Leave the variables as Google Cloud sets them."
        )


def _chips_of(variables: Mapping[str, str]) -> int:
    """The chips of a host, from its bounds, such as `2,2,1`."""
    bounds = next((variables[name] for name in _BOUNDS if variables.get(name)), "")
    sizes = bounds.split(",")
    return math.prod(map(int, sizes)) if all(size.isdecimal() for size in sizes) else 0


def _worker_of(variables: Mapping[str, str]) -> int:
    ours = "CLOUD_TPU_TASK_ID"  # of several processes on one host
    name = ours if variables.get(ours) and variables.get(PROCESS_ADDRESSES) else _WORKER_ID
    return number_of(variables, name, set_by=_SET_BY)


def _host_of(text: str) -> str:
    """The host in `host`, `host:port`, `name:port:address` or an IPv6 address."""
    text = text.strip()
    if text.startswith("["):
        return text.partition("]")[0] + "]"
    parts = text.split(":")
    if len(parts) > 3:
        return f"[{text}]"
    return parts[2] if len(parts) == 3 else parts[0]


def _has_port(place: str) -> bool:
    return place.rpartition(":")[2].isdecimal() and place.startswith(_host_of(place) + ":")


def _with_ports(hosts: list[str]) -> tuple[str, ...]:
    """An address for each process; processes of one host differ in the port."""
    return tuple(
        f"{host}:{_PORT + hosts[:number].count(host)}" for number, host in enumerate(hosts)
    )
