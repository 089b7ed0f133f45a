"""`replicax devices` as data, text and JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from replicax._tools import machine as _machine
from replicax._tools.compare import devices as _devices
from replicax._tools.compare.devices import StrategyUse


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


def test_every_strategy_is_looked_at():
    report = _devices.devices(2)
    assert [(use.strategy, use.replicas) for use in report.strategies] == [
        ("default", 1),
        ("one_device", 1),
        ("mirrored", 2),
        ("central_storage", 2),
    ]


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


def test_json(report):
    data = json.loads(_devices.devices_to_json(report))
    assert data["machine"]["devices"][1] == {
        "name": "GPU:1",
        "kind": "Abacus",
        "platform": "gpu",
        "memory_bytes": None,
    }
    assert data["strategies"] == [
        {
            "strategy": "mirrored",
            "call": "MirroredStrategy()",
            "replicas": 2,
            "compute_devices": ["GPU:0", "GPU:1"],
            "variable_devices": ["GPU:0", "GPU:1"],
        }
    ]
