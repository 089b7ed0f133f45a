"""Virtual devices, made in time, and the matrix of strategies."""

import os
import sys

import jax
import pytest

import replicax as rx
from replicax.testing import MATRIX, strategy_params

from helpers import completed


def run(code):
    environ = {name: value for name, value in os.environ.items() if name != "JAX_NUM_CPU_DEVICES"}
    return completed([sys.executable, "-c", code], env={**environ, "JAX_PLATFORMS": "cpu"})


def test_devices_that_are_there_already_are_enough():
    for count in (1, 8):
        assert rx.testing.virtual_devices(count) == jax.local_devices(backend="cpu")


@pytest.mark.parametrize("count", [0, -1, "2", 2.0])
def test_a_wrong_number_of_devices(count):
    with pytest.raises(rx.errors.UsageError, match="count"):
        rx.testing.virtual_devices(count)


def test_too_late_for_more():
    with pytest.raises(
        rx.errors.BackendAlreadyInitialized, match="JAX already runs with 8"
    ) as caught:
        rx.testing.virtual_devices(9)
    assert "JAX_NUM_CPU_DEVICES=9" in str(caught.value)
    assert len(jax.devices("cpu")) == 8


def test_in_time_in_a_fresh_process():
    done = run(
        "import replicax as rx\n"
        "print(len(rx.testing.virtual_devices(3)))\n"
        "print(rx.MirroredStrategy().num_replicas_in_sync)\n"
        "print(len(rx.testing.virtual_devices(2)))"
    )
    assert done.stdout.split() == ["3", "3", "3"], done.stderr


def test_too_late_in_a_fresh_process():
    done = run("import jax, replicax as rx\njax.devices()\nrx.testing.virtual_devices(2)")
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "BackendAlreadyInitialized" in last
    assert "2 virtual devices" in last
    assert "`virtual_devices`" in last
    assert "JAX_NUM_CPU_DEVICES=2" in last


@pytest.mark.parametrize("name", list(MATRIX))
def test_a_name_says_how_many_replicas(name):
    replicas = MATRIX[name]().num_replicas_in_sync
    assert name in strategy_params(replicas=(replicas,))
    assert all(
        name not in strategy_params(replicas=(count,))
        for count in (1, 2, 3, 4, 8)
        if count != replicas
    )


def test_all_names():
    assert strategy_params() == list(MATRIX)
    assert strategy_params(replicas=()) == []
    assert strategy_params(replicas=(4, 8)) == ["multi_worker_8", "central_storage_4"]


def test_the_kinds():
    assert MATRIX["default"]() is rx.get_strategy()
    assert isinstance(MATRIX["one_device"](), rx.OneDeviceStrategy)
    assert isinstance(MATRIX["mirrored_3"](), rx.MirroredStrategy)
    assert isinstance(MATRIX["multi_worker_8"](), rx.MultiWorkerMirroredStrategy)
    assert isinstance(MATRIX["central_storage_3"](), rx.CentralStorageStrategy)


def test_every_use_is_a_new_strategy():
    assert MATRIX["mirrored_2"]() is not MATRIX["mirrored_2"]()
