"""The option records: defaults, and the combinations that are refused."""

from __future__ import annotations

import dataclasses

import pytest

from replicax._core.errors import UsageError
from replicax._core.options import (
    CommunicationImplementation,
    CommunicationOptions,
    InputOptions,
    InputReplicationMode,
    RunOptions,
)

PER_REPLICA = InputReplicationMode.PER_REPLICA


def test_the_defaults_are_those_of_tensorflow():
    assert dataclasses.astuple(RunOptions()) == (True, False, None)
    assert dataclasses.astuple(InputOptions()) == (True, InputReplicationMode.PER_WORKER, False, 1)
    automatic = CommunicationImplementation.AUTO
    assert dataclasses.astuple(CommunicationOptions()) == (0, None, automatic, None)


@pytest.mark.parametrize("options", [RunOptions(), InputOptions(), CommunicationOptions()])
def test_options_do_not_change(options):
    name = dataclasses.fields(options)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(options, name, None)


def test_a_pipeline_per_replica_may_be_on_its_device():
    options = InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=PER_REPLICA,
        experimental_place_dataset_on_device=True,
    )
    assert options.experimental_place_dataset_on_device


def test_a_pack_has_a_size():
    with pytest.raises(UsageError, match="`bytes_per_pack` must be at least 0, got -1"):
        CommunicationOptions(bytes_per_pack=-1)


@pytest.mark.parametrize("seconds", [0, -1.5])
def test_a_timeout_is_positive(seconds):
    with pytest.raises(ValueError, match="`timeout_seconds` must be positive"):
        CommunicationOptions(timeout_seconds=seconds)
