"""Batches on the devices, compared with those of other workers before they are needed."""

from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError, WorkersDiffer
from replicax._fit.batches import agreed, agreement_on, placed
from replicax.testing import MATRIX

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
        with pytest.raises(WorkersDiffer, match="All must have the same batches"):
            next(batches)
        return True

    assert as_workers(2, work) == [True, True]


@pytest.fixture(params=["mirrored_2", "central_storage_2"], scope="module")
def two(request):
    return MATRIX[request.param]()


@pytest.fixture(params=["first", "one_device", "mirrored_2", "central_storage_2"])
def any_of_them(request):
    if request.param == "first":
        return rx.OneDeviceStrategy("CPU:0")
    return MATRIX[request.param]()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_are_placed_in_order_and_copied(any_of_them, ahead):
    distribution = any_of_them.extended.distribution
    buffer, taken = np.zeros((4, 1), "float32"), []

    def batches():
        for number in range(4):
            taken.append(number)
            buffer[:] = number
            yield buffer, None

    found = placed(batches(), distribution, ahead=ahead)
    first = next(found)
    assert taken == list(range(ahead + 1))
    seen = [np.asarray(batch).ravel().tolist() for batch, none in [first, *found] if none is None]
    assert seen == [[float(number)] * 4 for number in range(4)]


@pytest.mark.parametrize(
    ("rows", "dtype", "kind"),
    [
        (4, "float32", np.ndarray),
        (4, jnp.bfloat16, np.ndarray),
        (4, "float64", jax.Array),  # becomes float32
        (1 << 17, "float32", jax.Array),
    ],
)
def test_the_first_cpu_gets_small_arrays_by_the_call(rows, dtype, kind):
    distribution = rx.OneDeviceStrategy("CPU:0").extended.distribution
    given = np.ones((rows, 1), dtype)
    (found,) = placed([given], distribution, ahead=0)
    assert isinstance(found, kind) and not np.shares_memory(found, given)


def test_each_batch_is_placed_by_its_own_shape(two):
    even, uneven = placed([np.ones((4, 1)), np.ones((3, 1))], two.extended.distribution, ahead=0)
    assert not even.sharding.is_fully_replicated
    assert uneven.sharding.is_fully_replicated


def test_no_batches_are_no_batches(two):
    assert list(placed([], two.extended.distribution, ahead=1)) == []


@pytest.mark.parametrize("kind", ["U1", "S1", "O"])
def test_text_does_not_go_to_devices(any_of_them, kind):
    batches = [(np.ones((4, 1)), np.full((4, 1), "a").astype(kind))]
    with pytest.raises(UsageError, match="with text"):
        next(placed(batches, any_of_them.extended.distribution, ahead=0))
