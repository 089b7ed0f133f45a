"""Workers say before each step what they bring; here they are threads."""

import gc
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from replicax._core.channel import current
from replicax._core.errors import WorkersDiffer
from replicax._input.in_step import InStep
from replicax._input.sharing import cut

from channels import as_workers


def share(rows, features=2, dtype="float32", digest=""):
    made = cut({"x": np.ones((rows, features), dtype)}, [rows - 1, 1])
    return type(made)(made.pieces, made.whole, digest)


def steps(*columns, is_same=False):

    def work(index):
        step = InStep(current().offer, "data", None, is_same=is_same)
        return [step.next(each) for each in columns[index]]

    return as_workers(len(columns), work)


def test_every_worker_knows_the_rows_of_all():
    for worker in steps([share(3), share(2)], [share(3), share(4)]):
        assert [step.sizes for step in worker] == [((2, 1), (2, 1)), ((1, 1), (3, 1))]
        assert [step.is_even for step in worker] == [False, False]


def test_who_has_no_rows_left_goes_on_with_none():
    short, long = steps([share(2), None], [share(2), share(2)])
    assert [step.sizes for step in short] == [((1, 1), (1, 1)), ((0, 0), (1, 1))]
    assert [step.is_even for step in long] == [True, False]
    assert short[1].batch.sizes == [0, 0]
    assert short[1].batch.pieces[0]["x"].shape == (0, 2)


def test_shares_are_announced_before_they_are_needed():
    def work(index):
        step = InStep(current().offer, "data", None, is_same=False)
        shares = [share(2 + index), share(4 + index)]
        for each in shares:
            step.announce(each)
        found = [step.next(each).sizes for each in shares]
        with pytest.raises(StopIteration):
            step.next(None)
        return found

    assert as_workers(2, work) == [[((1, 1), (2, 1)), ((3, 1), (4, 1))]] * 2


def test_who_leaves_a_pass_withdraws_what_he_has_announced():
    offers = [Mock(), Mock()]
    step = InStep(Mock(side_effect=offers), "data", None, is_same=False)
    for _ in offers:
        step.announce(share(2))
    offers[0].answers.return_value = [["", [[[1, 1], ""]]]]
    step.next(share(2))
    del step
    gc.collect()
    assert [offer.withdraw.called for offer in offers] == [False, True]


def test_all_end_together():
    assert [type(end) for end in steps([share(2), None], [share(2), None])] == [StopIteration] * 2


@pytest.mark.parametrize("other", [share(2, features=3), share(2, dtype="int32")])
def test_batches_of_another_kind_are_refused_at_the_first_step_and_later(other):
    for before in ([], [share(2), share(5)]):
        errors = steps([*before, share(2)], [*before, other], [*before, share(2)])
        assert [type(error) for error in errors] == [WorkersDiffer] * 3
        assert "must have the same kind of batches" in str(errors[0])
        assert "worker 0: float32[None, 2] in " in errors[1].table
        assert "worker 1: " in errors[1].table


def test_all_may_change_the_kind_of_their_batches_together():
    column = [share(2), share(2, features=3), None]
    assert [type(end) for end in steps(column, column)] == [StopIteration] * 2


def test_the_same_data_is_the_same_on_all():
    same = [share(2, digest="a")]
    assert [len(worker) for worker in steps(same, same, is_same=True)] == [1, 1]
    errors = steps(same, [share(2, digest="b")], is_same=True)
    assert [error.differing for error in errors] == [("batch (its checksum)",)] * 2
    errors = steps(same, [None], is_same=True)
    assert [error.differing for error in errors] == [("number of batches",)] * 2
    assert "1 of 2 workers have another batch" in errors[0].table


def together(*shares):
    """Shares that are known with the first of them."""
    known = tuple((each.sizes, each.digest) for each in shares)
    return [replace(each, announced=() if i else known) for i, each in enumerate(shares)]


def exchanges(columns, is_same=False):
    """The steps of workers with these shares, and how often each has told the others something."""

    def work(index):
        offer = Mock(side_effect=current().offer)
        step = InStep(offer, "data", None, is_same=is_same)
        for each in columns[index]:
            step.announce(each)
        found = [step.next(each).sizes for each in columns[index]]
        with pytest.raises(StopIteration):
            step.next(None)
        return found, offer.call_count

    return as_workers(len(columns), work)


def test_of_shares_that_are_known_together_the_others_are_told_once():
    shares = [share(rows) for rows in (2, 3, 4, 5)]
    sizes = [((rows - 1, 1),) * 2 for rows in (2, 3, 4, 5)]
    groups = [*together(*shares[:3]), *together(shares[3])]
    assert exchanges([groups, groups]) == [(sizes, 3)] * 2  # the end, too
    assert exchanges([shares, shares]) == [(sizes, 5)] * 2


def test_workers_may_know_of_another_number_of_shares_together():
    shares = [share(rows) for rows in (2, 3, 4, 5)]
    sizes = [((rows - 1, 1),) * 3 for rows in (2, 3, 4, 5)]
    columns = [together(*shares), shares, [*together(*shares[:3]), *together(shares[3])]]
    assert [found for found, _ in exchanges(columns)] == [sizes] * 3


def test_another_batch_among_those_known_together_is_refused_at_its_step():
    mine = together(*[share(2, digest=digest) for digest in "abc"])
    other = together(*[share(2, digest=digest) for digest in "abd"])
    fewer = together(*[share(2, digest=digest) for digest in "ab"])

    def work(columns):
        def run(index):
            step = InStep(current().offer, "data", None, is_same=True)
            taken = [step.next(each) for each in columns[index][:2]]
            with pytest.raises(WorkersDiffer) as caught:
                step.next(columns[index][2])
            return len(taken), caught.value.differing

        return as_workers(2, run)

    assert work([mine, other]) == [(2, ("batch (its checksum)",))] * 2
    assert work([mine, [*fewer, None]]) == [(2, ("number of batches",))] * 2
