"""A comparison made by hand, for tests of what is done with one."""

import pytest

from replicax._tools.compare.result import Comparison, Epoch, Measurement
from replicax._tools.compare.settings import Settings
from replicax._tools.machine import Device, Machine

MACHINE = Machine(
    system="Linux-6.1",
    processor="Abacus 9000",
    cores=2,
    memory_bytes=8 * 2**30,
    devices=(Device("CPU:0", "cpu", "cpu", 8 * 2**30), Device("CPU:1", "cpu", "cpu", None)),
    versions={"python": "3.11.7", "replicax": "0.1.0"},
    variables={"NPROC": "8"},
)


def _comparison(
    *, one_device=(1.0, 1.0), mirrored=(2.0, 1.25), difference=2.5e-6, examples_per_round=1000
):
    epochs = (Epoch(0.9, 0.7, 0.8, 0.75, 2.0), Epoch(0.3, 0.9, 0.25, 0.925, 3.0))
    one = Measurement(
        strategy="one_device",
        replicas=1,
        compute_devices=("CPU:0",),
        variable_devices=("CPU:0",),
        first_step_seconds=1.5,
        epochs=epochs,
        weight_difference=0.0,
        differing_weight="conv/kernel",
        round_seconds=one_device,
    )
    two = Measurement(
        strategy="mirrored",
        replicas=2,
        compute_devices=("CPU:0", "CPU:1"),
        variable_devices=("CPU:0", "CPU:1"),
        first_step_seconds=2.5,
        epochs=epochs,
        weight_difference=difference,
        differing_weight="dense/bias",
        round_seconds=mirrored,
    )
    return Comparison(
        settings=Settings(strategies=("one_device", "mirrored"), epochs=2, repeats=2),
        measurements=(one, two),
        scaling=(),
        machine=MACHINE,
        parameters=12345,
        train_examples=1437,
        test_examples=360,
        examples_per_round=examples_per_round,
        seconds=12.5,
    )


@pytest.fixture(scope="session")
def sample():
    """Make a comparison of two strategies; arguments change one thing each."""
    return _comparison
