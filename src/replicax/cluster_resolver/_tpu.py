"""The hosts of a TPU: one, a pod slice of many, or several slices; on Google Cloud or in GKE."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from replicax._core.env import PCI_DEVICES, chips_on_bus
from replicax._core.errors import ClusterSpecError
from replicax.cluster_resolver._base import ClusterResolver
from replicax.cluster_resolver._cloud import Fetch, fetch_json
from replicax.cluster_resolver._spec import ClusterSpec, JaxProcess, cluster_name
from replicax.cluster_resolver._tpu_slice import (
    PROCESS_ADDRESSES,
    WORKER_HOSTNAMES,
    TpuSlice,
    ask_metadata,
    at_addresses,
    slice_of,
)

if TYPE_CHECKING:
    from pathlib import Path

# The fallback for programs that are not to be changed; an argument wins.
_FALLBACK = "RX_TPU_FALLBACK"
_KINDS = ("gpu", "cpu")


class TPUSystemMetadata(NamedTuple):
    """The facts about a TPU, from `TPUClusterResolver.get_tpu_system_metadata`.

    Args:
        num_cores: The devices of all hosts.
        num_hosts: The hosts.
        num_of_cores_per_host: The devices of each.
        topology: The result of `initialize_tpu_system`, once it was called.
        devices: The names of all devices.

    Example:
        >>> from replicax.cluster_resolver import TPUSystemMetadata
        >>> TPUSystemMetadata(4, 1, 4, None, ()).num_hosts
        1
    """

    num_cores: int
    num_hosts: int
    num_of_cores_per_host: int
    topology: object
    devices: tuple[str, ...]


@final
class TPUClusterResolver(ClusterResolver):
    """The hosts of the TPU that this machine is a part of, each a worker.

    A TPU is found in the variables that GKE sets (`TPU_WORKER_HOSTNAMES`, `TPU_WORKER_ID`, and
    `MEGASCALE_…` for several slices), on the metadata server of a TPU VM, or on the PCI bus.

    **Differs from TF:** the program runs on the hosts of the TPU, on every one of them, as JAX's
    programs do; no service is asked for a TPU elsewhere. So `credentials`, `service`,
    `discovery_url` and `coordinator_name` are ignored, and a name is only checked. With
    `fallback`, a program for a TPU runs where there is none.

    Args:
        tpu: None, empty or `"auto"` for the TPU of this host; `"local"` for its chips alone;
            the name it must have; or the addresses of its hosts, with commas.
        zone: Not needed; it is there for the signature.
        project: Not needed.
        job_name: `"worker"`: all hosts train.
        coordinator_name: Not needed: no process stands beside the hosts'.
        coordinator_address: The address of the first host, instead of its port 8482.
        credentials: Not needed.
        service: Not needed.
        discovery_url: Not needed.
        fallback: The kinds of devices to use without a TPU, in order: `"gpu"`, `"cpu"`. By default
            what the environment variable `RX_TPU_FALLBACK` says, such as `gpu,cpu`.
        environ: The variables to read; by default `os.environ`.
        fetch: Asks the metadata server; by default over HTTP with a time-out of 5 seconds.
        pci_devices: The folder of the PCI bus.

    Raises:
        ClusterSpecError: If there is no TPU and no fallback, or the arguments do not fit.

    Example:
        >>> from replicax.cluster_resolver import TPUClusterResolver
        >>> environ = {"TPU_WORKER_HOSTNAMES": "host0,host1", "TPU_WORKER_ID": "1"}
        >>> resolver = TPUClusterResolver(environ=environ)
        >>> resolver.cluster_spec(), resolver.task_id
        (ClusterSpec({'worker': ['host0:8482', 'host1:8482']}), 1)
    """

    _rpc_layer = "grpc"

    def __init__(
        self,
        tpu: str | None = None,
        zone: str | None = None,
        project: str | None = None,
        job_name: str = "worker",
        coordinator_name: str | None = None,
        coordinator_address: str | None = None,
        credentials: object = "default",
        service: object = None,
        discovery_url: str | None = None,
        *,
        fallback: Sequence[str] = (),
        environ: Mapping[str, str] | None = None,
        fetch: Fetch = fetch_json,
        pci_devices: Path = PCI_DEVICES,
    ) -> None:
        del zone, project, coordinator_name, credentials, service, discovery_url
        self._tpu = "" if tpu in (None, "auto") else str(tpu)
        self._job = job_name
        self._coordinator_address = coordinator_address
        self._environ = environ
        self._fetch = fetch
        self._pci_devices = pci_devices
        self._looked: list[str] = []
        self._topology: object = None
        self.fallback = _fallback_of(fallback, self._variables())
        self._check()

    @staticmethod
    def connect(
        tpu: str | None = None, zone: str | None = None, project: str | None = None
    ) -> TPUClusterResolver:
        """Find the TPU, join its other hosts and look at its devices.

        Args:
            tpu: As for the class.
            zone: As for the class.
            project: As for the class.

        Returns:
            The resolver.

        Raises:
            ClusterSpecError: If there is no TPU.
        """
        resolver = TPUClusterResolver(tpu, zone, project)
        # By name and not at the top, because it needs JAX, which this package must not import.
        importlib.import_module("replicax.tpu.experimental").initialize_tpu_system(resolver)
        return resolver

    @property
    def found(self) -> bool:
        """Whether there is a TPU; else the first of `fallback` that this machine has is used."""
        return self._slice is not None

    @property
    def looked_for(self) -> str:
        """Where a TPU was looked for, and what was found there: one line for each place."""
        _ = self._slice
        return "\n".join(f"    {line}" for line in self._looked)

    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the hosts; empty if nothing names them, or without a TPU.

        With several slices, those that this host knows: its own slice's, and the first of all.
        """
        known = self._slice.addresses() if self._slice else {}
        if known and self._coordinator_address:
            known[0] = self._coordinator_address.removeprefix("grpc://")
        if not known:
            return ClusterSpec({})
        all_known = list(known) == list(range(len(known)))
        return ClusterSpec({self._job: list(known.values()) if all_known else known})

    def jax_process(self) -> JaxProcess | None:
        """The place of this host in its JAX cluster; None if it is alone."""
        spec = self.cluster_spec()
        if self._slice is None or not spec:
            return None
        first = spec.task_address(self._job, 0)
        return JaxProcess(first, self._slice.num_hosts, self.task_id or 0)

    def cluster_name(self) -> str:
        """The name of the cluster; of several slices, whose hosts know only some, of the first."""
        if self._slice is None or self._slice.slices == 1:
            return super().cluster_name()
        return cluster_name(ClusterSpec({self._job: [self._slice.coordinator]}), self._job)

    def _address(self, job: str | None, index: int | None) -> str | None:
        return super()._address(job, index) if self.cluster_spec() else None

    def get_master(self) -> str:
        """The address of this host."""
        return self.master()

    def get_job_name(self) -> str:
        """The job of the hosts."""
        return self._job

    def get_coordination_service_leader(self) -> str:
        """The first host, where all meet."""
        return f"/job:{self._job}/task:0"

    def _accelerators(self) -> Mapping[str, int]:
        devices = self._slice.devices if self._slice else 0
        return {"TPU": devices} if devices else {}

    def get_tpu_system_metadata(self) -> TPUSystemMetadata:
        """How many hosts and devices there are, as they are described; JAX is not started."""
        hosts = self._slice.num_hosts if self._slice else 0
        each = self.num_accelerators().get("TPU", 0)
        names = tuple(
            f"/job:{self._job}/task:{host}/device:TPU:{device}"
            for host in range(hosts)
            for device in range(each)
        )
        return TPUSystemMetadata(len(names), hosts, each, self._topology, names)

    def set_tpu_topology(self, topology: object) -> None:
        """Remember the topology that `initialize_tpu_system` found."""
        self._topology = topology

    def _found_task(self) -> tuple[str | None, int | None]:
        return self._job, self._slice.number if self._slice else 0

    @functools.cached_property
    def _slice(self) -> TpuSlice | None:
        """The TPU, or None; looked for once, because a host does not change."""
        variables, note = self._variables(), self._looked.append
        if any(sign in self._tpu for sign in ",.:"):
            return at_addresses(self._tpu, variables)
        chips = chips_on_bus(self._pci_devices)
        if self._tpu != "local":
            for name in (PROCESS_ADDRESSES, WORKER_HOSTNAMES):
                if variables.get(name):
                    return slice_of(variables, chips)
                note(f"{name}: not set")
            if "TPU_SKIP_MDS_QUERY" in variables:
                note("metadata server: not asked, because TPU_SKIP_MDS_QUERY is set")
            elif not chips and "GCE_METADATA_HOST" not in variables:
                note("metadata server http://metadata.google.internal: not asked without a chip")
            else:
                metadata, line = ask_metadata(variables, self._fetch)
                note(line)
                if metadata:
                    return slice_of({**metadata, **variables}, chips)
        note(f"chips of a TPU in {self._pci_devices}: {chips or 'none'}")
        platforms = variables.get("JAX_PLATFORMS", "")
        note(f"JAX_PLATFORMS: {platforms or 'not set'}")
        version = "installed" if importlib.util.find_spec("libtpu") else "not installed"
        note(f"libtpu: {version}")
        note('jax.devices("tpu"): not asked; without one of these JAX has none')
        wanted = "tpu" in platforms.split(",") or "JAX_FORCE_TPU_INIT" in variables
        return TpuSlice(chips=chips) if chips or wanted else None

    def _check(self) -> None:
        if self._job != "worker":
            raise ClusterSpecError.of(
                "job_name", "'worker' for the hosts of a TPU", self._job, "Leave it out."
            )
        if self._slice is None and not self.fallback:
            raise ClusterSpecError(
                f"No TPU on this machine. Looked for:\n{self.looked_for}\n"
                "Start the program on a TPU VM, with `pip install 'replicax[tpu]'`, or let it run "
                'without one: TPUClusterResolver(tpu="auto", fallback=("gpu", "cpu")), or '
                "RX_TPU_FALLBACK=gpu,cpu in its environment. See docs/accelerators.md."
            )
        known = self._slice.name if self._slice else ""
        if known and self._tpu not in ("", "local", known):
            raise ClusterSpecError(
                f"tpu={self._tpu!r} cannot be reached from a host of {known!r}. Start the program "
                "on all hosts of the TPU you mean, or leave out `tpu` to use this one."
            )


def _fallback_of(fallback: Sequence[str], variables: Mapping[str, str]) -> tuple[str, ...]:
    """The kinds of devices to fall back to, in order: the program's, else the environment's."""
    received = f"fallback={fallback!r}"
    kinds = (fallback,) if isinstance(fallback, str) else tuple(fallback)
    if not kinds and variables.get(_FALLBACK):
        received = f"{_FALLBACK}={variables[_FALLBACK]!r}"
        kinds = tuple(kind.strip() for kind in variables[_FALLBACK].split(","))
    unknown = [kind for kind in kinds if kind not in _KINDS]
    if unknown:
        raise ClusterSpecError(
            f'{received} has no kind of devices {unknown[0]!r}. Use fallback=("gpu", "cpu"), '
            "or one of them."
        )
    return kinds
