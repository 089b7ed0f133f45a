"""The option records: defaults, and the combinations that are refused."""

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


def test_the_defaults_are_those_of_tensorflow():
    assert dataclasses.astuple(RunOptions()) == (True, False, None)
    assert dataclasses.astuple(InputOptions()) == (True, InputReplicationMode.PER_WORKER, False, 1)
    automatic = CommunicationImplementation.AUTO
    assert dataclasses.astuple(CommunicationOptions()) == (0, None, automatic, None)


def test_a_pack_has_a_size():
    with pytest.raises(UsageError, match="`bytes_per_pack` must be at least 0, got -1"):
        CommunicationOptions(bytes_per_pack=-1)


@pytest.mark.parametrize("seconds", [0, -1.5])
def test_a_timeout_is_positive(seconds):
    with pytest.raises(ValueError, match="`timeout_seconds` must be positive"):
        CommunicationOptions(timeout_seconds=seconds)


def test_an_implementation_may_be_given_by_its_name():
    options = CommunicationOptions(implementation="nccl")
    assert options.implementation is CommunicationImplementation.NCCL
