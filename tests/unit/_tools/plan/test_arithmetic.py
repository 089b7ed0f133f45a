"""The arithmetic of plans, against numbers by hand."""

import pytest

from replicax._core.machine.memory import GIB, size
from replicax._tools.plan.hlo import Collective, wire_bytes, wire_bytes_by_kind
from replicax._tools.plan.planning import LargestBatch, largest
from replicax._tools.plan.step import compile_and_read, too_large


@pytest.mark.parametrize(
    ("kind", "group", "sent"),
    [
        ("all-reduce", 8, 1400),  # 2 · 7/8 · 800
        ("all-reduce", 2, 800),  # 2 · 1/2 · 800
        ("all-gather", 8, 700),  # 7/8 · 800
        ("all-gather", 4, 600),
        ("reduce-scatter", 8, 5600),  # 800 is one of eight pieces, of which seven are sent
        ("all-to-all", 8, 700),
        ("collective-permute", 8, 800),
        ("collective-broadcast", 8, 800),
    ],
)
def test_bytes_on_the_wire(kind, group, sent):
    assert wire_bytes(Collective(kind, 800, group)) == sent


def test_bytes_by_kind_count_every_turn_of_a_loop():
    found = [Collective("all-gather", 800, 8, times=3), Collective("all-gather", 80, 8)]
    assert wire_bytes_by_kind(found) == {"all-gather": 3 * 700 + 70}


@pytest.mark.parametrize(
    ("count", "words"),
    [(12, "12 B"), (2048, "2.0 KiB"), (3 * 2**20, "3.0 MiB"), (1.5 * GIB, "1.5 GiB")],
)
def test_sizes_in_words(count, words):
    assert size(count) == words


def search(needs, start, capacity, tries=6):
    tried = []

    def counted(rows):
        tried.append(rows)
        return needs(rows)

    return largest(counted, start, capacity=capacity, multiple=8, tries=tries), tried


def test_on_a_line_the_largest_batch_takes_three_tries():
    found, tried = search(lambda rows: 1000 + 100 * rows, 64, 1_000_000)
    exact = (1_000_000 - 1000) // 100
    assert found.is_known
    assert exact * 15 / 16 <= found.fits <= exact
    assert found.fits % 8 == 0
    assert len(tried) <= 3


def test_a_cache_that_hides_the_growth_at_first_is_seen_through():
    found, _ = search(lambda rows: 5_000 + (0 if rows < 300 else 10 * rows), 32, 100_000)
    assert found.is_known
    assert 9500 * 15 / 16 <= found.fits <= 9500


def test_bisection_where_the_compiler_only_says_too_much():
    found, tried = search(lambda rows: 100 * rows if rows <= 1000 else None, 2000, 10**6, tries=20)
    assert found == LargestBatch(1000, found.too_large, is_known=True)
    assert len(tried) == len(set(tried))


def test_nothing_fits():
    found, _ = search(lambda rows: 10**9, 64, 1000)
    assert found == LargestBatch(0, 8, is_known=True)


def test_too_few_tries_are_admitted():
    found, _ = search(lambda rows: rows * rows, 8, 10**9, tries=1)
    assert found == LargestBatch(8, None, is_known=False)


@pytest.mark.parametrize(
    ("said", "needed", "available"),
    [
        (
            (
                "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
                "temporaries (180.19G) exceeds available HBM (15.75G)."
            ),
            round(180.19 * GIB),
            round(15.75 * GIB),
        ),
        (
            (
                "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory "
                "space hbm. Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G."
            ),
            round(20.5 * GIB),
            round(15.75 * GIB),
        ),
        ("RESOURCE_EXHAUSTED: out of something", None, None),
    ],
)
def test_what_the_compiler_says_of_a_program_that_is_too_large(said, needed, available):
    found = too_large(said)
    assert (found.needed, found.available) == (needed, available)


def test_a_batch_of_more_rows_than_jax_counts_is_too_large():
    def lower():
        raise OverflowError("Python integer 2147483648 out of bounds for int32")

    assert compile_and_read(lower, 1).needs(2**40) is None
    found = largest(
        lambda rows: rows if rows < 2**31 else None, 8, capacity=2**33, multiple=8, tries=12
    )
    assert 2**30 < found.fits < 2**31 <= found.too_large
