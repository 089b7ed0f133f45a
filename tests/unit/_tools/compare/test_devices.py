"""`replicax devices` as data, text and JSON; what strategies use, and how a program gets them."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import pytest

import replicax as rx
from replicax._tools import machine as _machine
from replicax._tools.compare import devices as _devices
from replicax._tools.compare.devices import StrategyUse, strategy_use
from replicax._tools.compare.settings import LOCAL
from replicax._tools.compare.training import check
from replicax._tools.strategies import call as written_call
from replicax._tools.strategies import make


@pytest.fixture
def report(sample):
    machine = replace(
        sample().machine,
        devices=(
            _machine.Device("GPU:0", "Abacus", "gpu", 2**31),
            _machine.Device("GPU:1", "Abacus", "gpu", None),
        ),
    )
    both = ("GPU:0", "GPU:1")
    return _devices.DeviceReport(
        machine, (StrategyUse("mirrored", "MirroredStrategy()", 2, both, both),)
    )


def test_text(report):
    assert _devices.devices_to_text(report).split("\n") == [
        "device  kind    platform   memory",
        "------  ------  --------  -------",
        "GPU:0   Abacus  gpu       2.0 GiB",
        "GPU:1   Abacus  gpu       unknown",
        "",
        "strategy  as                  replicas  compute on  variables on",
        "--------  ------------------  --------  ----------  ------------",
        "mirrored  MirroredStrategy()  2         GPU:0-1     GPU:0-1 each",
        "",
        "machine",
        "---------  ----------------",
        "system     Linux-6.1",
        "processor  Abacus 9000",
        "cores      2",
        "memory     8.0 GiB",
        "devices    GPU:0-1 (Abacus)",
        "python     3.11.7",
        "replicax   0.1.0",
        "NPROC      8",
    ]


@pytest.mark.parametrize(
    ("name", "replicas", "compute", "variables"),
    [
        ("default", 1, ("CPU:0",), ("CPU:0",)),
        ("one_device", 1, ("CPU:0",), ("CPU:0",)),
        ("mirrored", 3, ("CPU:0", "CPU:1", "CPU:2"), ("CPU:0", "CPU:1", "CPU:2")),
        ("central_storage", 3, ("CPU:0", "CPU:1", "CPU:2"), ("CPU:0",)),
    ],
)
def test_use_of_three_devices(name, replicas, compute, variables):
    use = strategy_use(name, jax.local_devices()[:3])
    assert use.replicas == replicas
    assert use.compute_devices == compute
    assert use.variable_devices == variables


@pytest.mark.parametrize("name", ["mirrored", "central_storage"])
def test_all_devices_need_not_be_named(name):
    assert written_call(name, jax.local_devices()).endswith("Strategy()")


def test_beside_one_accelerator_a_central_storage_is_the_cpu():
    gpu = SimpleNamespace(platform="gpu", id=0)
    written = 'CentralStorageStrategy(["GPU:0"], parameter_device="CPU:0")'
    assert written_call("central_storage", [gpu]) == written
    assert written_call("central_storage", jax.local_devices()[:1]).endswith('(["CPU:0"])')


def test_the_expressions_are_true():
    for name in LOCAL:
        made = make(name, jax.local_devices()[:2], LOCAL)
        written = eval(written_call(name, jax.local_devices()[:2]), vars(rx) | _names())
        assert type(made) is type(written)


def _names():
    words = ["get_strategy", "OneDeviceStrategy", "MirroredStrategy", "CentralStorageStrategy"]
    return {word: getattr(rx, word) for word in words}


def test_without_their_packages_parameter_servers_are_refused_before_the_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(rx.errors.UsageError, match="cloudpickle"):
        check("parameter_server", jax.local_devices())
