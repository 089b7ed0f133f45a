"""Batches that are compared with those of other workers before they are needed."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import pytest

from replicax._core.errors import WorkersDiffer
from replicax._keras.agreed_batches import agreed, agreement_on

from channels import as_workers


def test_a_batch_is_compared_when_it_is_read_and_required_when_it_is_needed():
    agreements, events = [Mock(name=str(number)) for number in range(3)], []

    def read():
        for number, agreement in enumerate(agreements):
            events.append(f"read {number}")
            agreement.require.side_effect = lambda n=number: events.append(f"require {n}")
            yield number, agreement

    events += (f"compute {batch}" for batch in agreed(read(), ahead=1))
    assert events == [
        *("read 0", "read 1", "require 0", "compute 0"),
        *("read 2", "require 1", "compute 1", "require 2", "compute 2"),
    ]
    assert not any(agreement.withdraw.called for agreement in agreements)


def test_what_is_not_needed_any_more_is_withdrawn():
    agreements = [Mock(), Mock(), Mock()]
    batches = agreed([(0, None), *enumerate(agreements)], ahead=2)
    assert [next(batches), next(batches)] == [0, 0]
    batches.close()
    called = [(one.require.called, one.withdraw.called) for one in agreements]
    assert called == [(True, False), (False, True), (False, True)]


@pytest.mark.parametrize("whole", [False, True])
def test_another_batch_is_an_error_before_it_is_computed(whole):
    rows = np.zeros((9, 2), "float32")

    def work(index):
        other = rows.copy()
        other[4 if whole else 0] = index  # only all of it shows a row in the middle
        pairs = [(one, agreement_on(one, 1, whole=whole)) for one in (rows, other)]
        batches = agreed(pairs, ahead=1)
        next(batches)
        with pytest.raises(WorkersDiffer, match="All workers must have the same batches"):
            next(batches)
        return True

    assert as_workers(2, work) == [True, True]
