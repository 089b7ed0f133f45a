"""The hosts of a TPU, from variables, the metadata server and the PCI bus; all are made up here."""

from pathlib import Path

import pytest

from replicax import errors
from replicax.cluster_resolver import JaxProcess, TPUClusterResolver, detect, task_of

NOWHERE = Path("/nowhere")
GKE = {
    "TPU_WORKER_HOSTNAMES": "tpu-0.svc,tpu-1.svc,tpu-2.svc,tpu-3.svc",
    "TPU_WORKER_ID": "2",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
}
SLICES = {
    "MEGASCALE_NUM_SLICES": "2",
    "MEGASCALE_SLICE_ID": "1",
    "MEGASCALE_COORDINATOR_ADDRESS": "first-0.svc:8081",
}
ATTRIBUTES = "http://metadata.google.internal/computeMetadata/v1/instance/attributes"
# As a host of a v4-16 answers: sixteen cores, two on each of its eight chips.
METADATA = {
    "agent-worker-number": 1,
    "worker-network-endpoints": "unknown:unknown:10.0.0.7,unknown:unknown:10.0.0.8",
    "tpu-env": "ACCELERATOR_TYPE: 'v4-16'\nCHIPS_PER_HOST_BOUNDS: '2,2,1'\nNODE_ID: 'mine'\n",
}


@pytest.fixture
def bus(tmp_path):
    """A PCI bus with four chips of a v4, a network card of Google, and a GPU."""
    devices = [("0x1ae0", "0x005e")] * 4 + [("0x1ae0", "0x0042"), ("0x10de", "0x20b0")]
    for number, (vendor, device) in enumerate(devices):
        folder = tmp_path / f"0000:00:0{number}.0"
        folder.mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "device").write_text(f"{device}\n")
    return tmp_path


def server(answers, asked=None):
    def fetch(request):
        assert request.headers == {"Metadata-Flavor": "Google"}
        place, _, name = request.url.rpartition("/")
        if asked is not None:
            asked.append(place)
        if name not in answers:
            raise errors.ClusterError(f"No answer from {place}: HTTP 404. Fix.")
        return answers[name]

    return fetch


def resolver(*args, environ=None, answers=None, bus=NOWHERE, **options):
    fetch = server(answers or {})
    return TPUClusterResolver(*args, environ=environ or {}, fetch=fetch, pci_devices=bus, **options)


def test_a_pod_by_the_variables_of_gke():
    found = resolver(environ=GKE)
    assert found.cluster_spec().as_dict() == {
        "worker": [f"tpu-{host}.svc:8482" for host in range(4)]
    }
    assert str(task_of(found)) == "worker 2"
    assert found.jax_process() == JaxProcess("tpu-0.svc:8482", 4, 2)
    assert found.master() == found.get_master() == "grpc://tpu-2.svc:8482"
    assert found.num_accelerators() == {"TPU": 4}
    assert (found.get_job_name(), found.environment) == ("worker", "")
    assert found.get_coordination_service_leader() == "/job:worker/task:0"


def test_what_is_known_of_the_devices():
    known = resolver(environ=GKE).get_tpu_system_metadata()
    assert (known.num_cores, known.num_hosts, known.num_of_cores_per_host) == (16, 4, 4)
    assert known.devices[5] == "/job:worker/task:1/device:TPU:1"
    assert known.topology is None


def test_one_host_is_alone():
    found = resolver(environ={"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"})
    assert found.cluster_spec().as_dict() == {"worker": ["localhost:8482"]}
    assert found.jax_process() == JaxProcess("localhost:8482", 1, 0)


def test_several_slices_know_the_first_host():
    found = resolver(environ=GKE | SLICES)
    # Hosts 4 to 7 are those of slice 1; of the others this one knows where all meet.
    assert found.cluster_spec().as_dict() == {
        "worker": {0: "first-0.svc:8482", **{4 + n: f"tpu-{n}.svc:8482" for n in range(4)}}
    }
    assert found.jax_process() == JaxProcess("first-0.svc:8482", 8, 6)
    assert found.task_id == 6


def test_hosts_of_all_slices_give_their_cluster_one_name():
    def name(**own):
        return resolver(environ=GKE | SLICES | own).cluster_name()

    elsewhere = ",".join(f"first-{host}.svc" for host in range(4))
    first = name(MEGASCALE_SLICE_ID="0", TPU_WORKER_HOSTNAMES=elsewhere, TPU_WORKER_ID="0")
    assert first == name() != name(MEGASCALE_COORDINATOR_ADDRESS="another-0.svc")
    assert "tpu-3.svc:8482" in resolver(environ=GKE).cluster_name()


def test_processes_of_one_host_listen_at_different_ports():
    addresses = {"TPU_PROCESS_ADDRESSES": "localhost:8476,localhost:8477", "CLOUD_TPU_TASK_ID": "1"}
    found = resolver(environ=addresses)
    assert found.cluster_spec().as_dict() == {"worker": ["localhost:8482", "localhost:8483"]}
    assert found.jax_process() == JaxProcess("localhost:8482", 2, 1)


def test_the_place_to_meet_can_be_given():
    found = resolver(environ=GKE, coordinator_address="grpc://tpu-0.svc:1234")
    assert found.jax_process() == JaxProcess("tpu-0.svc:1234", 4, 2)


def test_a_pod_by_the_metadata_server(bus):
    found = resolver("mine", answers=METADATA, bus=bus)
    assert found.cluster_spec().as_dict() == {"worker": ["10.0.0.7:8482", "10.0.0.8:8482"]}
    assert found.task_id == 1
    assert found.num_accelerators() == {"TPU": 4}


def test_slices_by_the_metadata_server(bus):
    told = "\n".join(f"{name}: '{value}'" for name, value in SLICES.items())
    found = resolver(answers={**METADATA, "tpu-env": told}, bus=bus)
    assert found.jax_process() == JaxProcess("first-0.svc:8482", 4, 3)


def test_a_chip_without_a_metadata_server_is_this_host_alone(bus):
    found = resolver(bus=bus)
    assert found.found
    assert found.cluster_spec().as_dict() == {}
    assert found.jax_process() is None
    assert (found.task_type, found.task_id, found.master()) == ("worker", 0, "")
    assert found.num_accelerators() == {"TPU": 4}


def test_local_asks_nobody(bus):
    found = resolver("local", environ=GKE, answers=METADATA, bus=bus)
    assert found.cluster_spec().as_dict() == {}
    assert found.get_tpu_system_metadata().num_hosts == 1


@pytest.mark.parametrize(("kind", "devices"), [("v3-32", 8), ("v4-32", 4), ("tpu7x-16", 8)])
def test_cores_that_are_devices(kind, devices):
    found = resolver(environ=GKE | {"TPU_ACCELERATOR_TYPE": kind})
    assert found.num_accelerators() == {"TPU": devices}


def test_addresses():
    one = resolver("grpc://10.0.0.2:8470")
    assert one.cluster_spec().as_dict() == {"worker": ["10.0.0.2:8470"]}
    two = resolver("10.0.0.2:9000, [fe80::1]:9000", environ={"TPU_WORKER_ID": "1"})
    assert two.cluster_spec().as_dict() == {"worker": ["10.0.0.2:9000", "[fe80::1]:9000"]}
    assert two.jax_process() == JaxProcess("10.0.0.2:9000", 2, 1)


def test_no_tpu_says_where_it_was_looked_for():
    environ = {"TPU_SKIP_MDS_QUERY": "1", "JAX_PLATFORMS": "cpu"}
    with pytest.raises(ValueError, match="No TPU on this machine") as caught:
        resolver(environ=environ)
    said = str(caught.value)
    for place in (
        "TPU_PROCESS_ADDRESSES: not set",
        "TPU_WORKER_HOSTNAMES: not set",
        "metadata server: not asked, because TPU_SKIP_MDS_QUERY is set",
        "chips of a TPU in /nowhere: none",
        "JAX_PLATFORMS: cpu",
        "libtpu: installed",
        'jax.devices("tpu"): not asked',
        'TPUClusterResolver(tpu="auto", fallback=("gpu", "cpu"))',
    ):
        assert place in said
    with pytest.raises(errors.ClusterSpecError, match="not asked without a chip"):
        resolver()


def test_what_the_metadata_server_said_is_told():
    environ = {"GCE_METADATA_HOST": "metadata:80"}
    with pytest.raises(errors.ClusterSpecError, match="http://metadata:80/.*: HTTP 404"):
        resolver(environ=environ)


def test_jax_can_be_told_that_there_is_one():
    assert resolver(environ={"JAX_PLATFORMS": "tpu,cpu"}).found


def test_a_fallback_is_no_cluster():
    found = resolver("auto", fallback=("gpu", "cpu"))
    assert not found.found
    assert found.fallback == ("gpu", "cpu")
    assert found.cluster_spec().as_dict() == {}
    assert (found.master(), found.num_accelerators(), found.jax_process()) == ("", {}, None)
    assert found.get_tpu_system_metadata().num_cores == 0
    assert resolver(fallback="cpu").fallback == ("cpu",)


def test_a_fallback_may_come_from_the_environment():
    told = {"RX_TPU_FALLBACK": "gpu, cpu"}
    assert resolver(environ=told).fallback == ("gpu", "cpu")
    assert resolver(environ=told, fallback="cpu").fallback == ("cpu",)  # the program's own wins
    with pytest.raises(errors.ClusterSpecError, match="RX_TPU_FALLBACK='tpu'"):
        resolver(environ={"RX_TPU_FALLBACK": "tpu"})


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ({"fallback": ("tpu",)}, {}, r"fallback=\('tpu',\)"),
        ({"job_name": "tpu_worker"}, GKE, "`job_name`.*'tpu_worker'"),
        ({"tpu": "other"}, GKE | {"TPU_NAME": "mine"}, "tpu='other'.*'mine'"),
        ({}, GKE | {"TPU_WORKER_ID": "4"}, "Worker 4"),
        ({"tpu": "a:1,b:1"}, {"TPU_WORKER_ID": "2"}, "Worker 2.* 2 hosts in the argument tpu"),
        ({}, GKE | SLICES | {"MEGASCALE_SLICE_ID": "2"}, "slice 2.* 2 slices"),
        ({}, {"TPU_WORKER_HOSTNAMES": "a,b"}, "TPU_WORKER_ID is not set"),
        ({}, GKE | {"MEGASCALE_NUM_SLICES": "2"}, "MEGASCALE_SLICE_ID is not set"),
    ],
)
def test_arguments_and_variables_that_do_not_fit(options, environ, said):
    with pytest.raises(errors.ClusterSpecError, match=said):
        resolver(environ=environ, **options)


def test_a_pod_is_detected():
    found = detect(GKE)
    assert type(found) is TPUClusterResolver
    assert found.cluster_spec().num_tasks("worker") == 4
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "1", "HOSTNAME": "t-1"}
    assert type(detect(GKE | pod)) is TPUClusterResolver
    assert detect({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) is None


def test_chips_of_this_machine_are_detected(monkeypatch, bus):
    from replicax.cluster_resolver import _detect, _tpu

    monkeypatch.setattr(_detect, "chips_on_bus", lambda: 4)
    monkeypatch.setattr(_tpu, "chips_on_bus", lambda folder: 4)
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    found = detect()
    assert type(found) is TPUClusterResolver
    assert found.jax_process() is None
    assert detect({}) is None
