"""The α–β model against numbers by hand, and plans extrapolated to other numbers of chips."""

from __future__ import annotations

import dataclasses
import json

import keras
import pytest

import replicax as rx
from replicax._tools.plan._alpha_beta import Link, cost, fit, hierarchical
from replicax._tools.plan._chips import TPUS, Chip, Network
from replicax._tools.plan._collectives import Collective
from replicax._tools.plan._places import Place, collective_seconds, place, with_halves
from replicax._tools.plan._result import Plan, Row
from replicax._tools.plan._scaling import scale

SLOW = Link(alpha=10.0, beta=0.01, gamma=0.001)


@pytest.mark.parametrize(
    ("kind", "algorithm", "seconds"),
    [
        # Seven eighths of 800 bytes are 700; each of the two halves of an all-reduce sends them.
        ("all-reduce", "ring", 14 * 10 + 1400 * 0.01 + 700 * 0.001),
        ("all-gather", "ring", 7 * 10 + 700 * 0.01),
        ("reduce-scatter", "ring", 7 * 10 + 700 * 0.01 + 700 * 0.001),
        ("all-reduce", "halving", 6 * 10 + 1400 * 0.01 + 700 * 0.001),
        ("all-gather", "halving", 3 * 10 + 700 * 0.01),
        # Up and down a tree of three levels, all 800 bytes each time.
        ("all-reduce", "tree", 6 * 10 + 4800 * 0.01 + 2400 * 0.001),
    ],
)
def test_eight_participants_and_800_bytes(kind, algorithm, seconds):
    assert cost(kind, 800, 8, algorithm).seconds(SLOW) == pytest.approx(seconds)


def test_a_tree_is_faster_for_small_arrays_and_a_ring_for_large_ones():
    def fastest(size):
        return min(("ring", "tree"), key=lambda a: cost("all-reduce", size, 64, a).seconds(SLOW))

    assert (fastest(8), fastest(10**6)) == ("tree", "ring")


@pytest.mark.parametrize("levels", [(8,), (4, 2), (2, 2, 2), (4, 1, 2)])
def test_rings_in_rings_send_no_more_than_one_ring(levels):
    for kind in "all-reduce", "all-gather", "reduce-scatter":
        found = hierarchical(kind, 800, levels)
        assert sum(level.sent for level in found) == cost(kind, 800, 8).sent
    messages = sum(level.messages for level in hierarchical("all-gather", 800, levels))
    assert messages == sum(level - 1 for level in levels)


def test_one_participant_sends_nothing():
    assert cost("all-reduce", 800, 1).seconds(SLOW) == 0
    assert cost("all-reduce", 800, 1, "tree").seconds(SLOW) == 0


SIZES = (4e3, 64e3, 1e6, 64e6)


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_fit_finds_what_made_the_times(noise):
    link = Link(50e-6, 2e-10)
    done = [cost("all-reduce", size, n) for size in SIZES for n in (2, 4)]
    wrong = [1 + noise * (-1) ** i for i in range(len(done))]
    found = fit((one, one.seconds(link) * off) for one, off in zip(done, wrong, strict=True))
    assert found.link.alpha == pytest.approx(link.alpha, rel=2 * noise + 1e-9)
    assert found.link.beta == pytest.approx(link.beta, rel=2 * noise + 1e-9)
    assert found.error <= noise * 1.5 + 1e-9


def test_adding_is_told_from_sending_where_both_are_measured():
    link = Link(50e-6, 2e-10, 1e-10)
    done = [cost(kind, size, 4) for size in SIZES for kind in ("all-gather", "reduce-scatter")]
    found = fit((one, one.seconds(link)) for one in done).link
    assert (found.alpha, found.beta, found.gamma) == pytest.approx((50e-6, 2e-10, 1e-10))
    # An all-reduce alone adds half of what it sends, always: that is a part of β then.
    rings = [cost("all-reduce", size, 4) for size in SIZES]
    both = fit((one, one.seconds(link)) for one in rings).link
    assert (both.beta, both.gamma) == pytest.approx((2e-10 + 0.5e-10, 0.0))


def test_times_that_shrink_with_size_do_not_make_a_negative_bandwidth():
    done = [cost("all-reduce", size, 2) for size in SIZES]
    found = fit(zip(done, [1e-3, 0.9e-3, 0.8e-3, 0.7e-3], strict=True)).link
    assert found.beta == 0
    assert 0.7e-3 < 2 * found.alpha < 1e-3  # two messages


V5E = TPUS["v5e"]


def test_how_chips_are_joined():
    assert place(V5E, 1) == Place(1, (1, 1))
    assert place(V5E, 8) == Place(1, (2, 4))
    assert place(V5E, 4096) == Place(16, (16, 16))
    assert place(TPUS["v5p"], 64) == Place(1, (4, 4, 4))
    assert place(TPUS["v3"], 4, per_chip=2).devices == 8
    assert with_halves(["v3:4x4", "v4:4x4x4", "v5e:2x2", "gpu:8", "cpu:x"]) == [
        *("v3:2x4", "v3:4x4", "v4:2x4x4", "v4:4x4x4", "v5e:2x2", "gpu:4", "gpu:8", "cpu:x")
    ]


def test_an_all_reduce_within_a_slice_and_among_slices():
    one = Collective("all-reduce", 10**9, 256)
    # 16 x 16: two rings, both ways, 50 GB/s each; 8 hops along each axis, twice.
    within = 2 * 255 / 256 * 1e9 / 200e9 + 2 * 16 * 1e-6
    assert collective_seconds(V5E, Place(1, (16, 16)), one) == pytest.approx(within)
    # Of the sum, a chip has 1/256; it goes among 4 slices, in two rounds each way.
    between = 2 * 3 / 4 * 1e9 / 256 / 3.125e9 + 2 * 2 * 10e-6
    more = dataclasses.replace(one, group=1024)
    assert collective_seconds(V5E, Place(4, (16, 16)), more) == pytest.approx(within + between)


EASY = Chip("easy", None, 1.0, 1e9, 1.0, None, Network())


def row(devices, batch, collectives, flops):
    return Row(
        **{"topology": f"cpu:{devices}", "strategy": "mirrored", "devices": devices},
        **{"replicas": devices, "batch": batch, "chip": EASY, "capacity": None, "fits": None},
        **{"needed": None, "memory": "known", "flops": flops, "memory_traffic": 0.0},
        **{"collectives": collectives, "wire": {}, "estimate": None, "largest": None},
        compile_seconds=0.0,
    )


# Each row takes 10 s and the optimizer 20 s: 8 rows on 4 devices, and on 2.
ROWS = [
    row(4, 8, (Collective("all-reduce", 12, 4),), flops=40.0),
    row(2, 8, (Collective("all-reduce", 12, 2),), flops=60.0),
]


def test_the_batch_of_a_chip_stays():
    (found,) = scale(ROWS, (1, 4, 1000), fixed_batch=False)
    alone, four, many = found.points
    assert (alone.batch, alone.seconds, alone.efficiency, alone.wire) == (2, 40, 1, {})
    assert (four.batch, four.wire["all-reduce"]) == (8, 18)  # 2 · 3/4 · 12
    assert (four.seconds, four.efficiency) == (58, pytest.approx(40 / 58))
    assert (many.batch, many.seconds) == (2000, pytest.approx(40 + 24 * 999 / 1000))
    assert many.at_best == 1
    # For 9 s of computing a second of waiting: 24 · 9 / 40.
    assert many.too_slow == pytest.approx(5.4, rel=1e-2)


def test_the_whole_batch_stays():
    (found,) = scale(ROWS, (1, 4), fixed_batch=True)
    alone, four = found.points
    assert (alone.batch, alone.seconds, alone.efficiency) == (8, 100, 1)
    assert (four.batch, four.seconds) == (8, 58)
    assert four.efficiency == pytest.approx(100 / 4 / 58)


def test_overlapped_communication_costs_what_is_longer():
    hidden = [dataclasses.replace(one, overlapped=True) for one in ROWS[0].collectives]
    (found,) = scale([dataclasses.replace(ROWS[0], collectives=hidden)], (4,), fixed_batch=False)
    assert (found.points[0].seconds, found.points[0].efficiency) == (40, 1)


def test_pieces_shrink_and_whole_arrays_stay():
    kinds = (Collective("reduce-scatter", 100, 4), Collective("all-gather", 400, 4))
    moved = Collective("collective-permute", 100, 4)
    (found,) = scale([row(4, 8, (*kinds, moved), 1.0)], (1, 8), fixed_batch=False)
    alone, eight = found.points
    assert alone.wire == {}
    # 7/8 of 400; half of 100
    assert eight.wire == {"reduce-scatter": 350, "all-gather": 350, "collective-permute": 50}


def test_what_is_compiled_elsewhere_sends_what_the_model_says():
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(8)])
    model.compile("adam", "mse")
    found = rx.plan(model, topologies=["v5e:2x4", "v5e:8x8"], batch_size=256, scale=(1, 64, 4096))
    (scaling,) = found.scaling
    assert scaling.compiled == "v5e:8x8"
    (check,) = scaling.checks
    assert check.topology == "v5e:2x4"
    assert check.compiled["all-reduce"] >= 2 * 7 / 8 * 4 * found.parameters
    assert abs(check.difference) < 0.001
    text = " ".join(found.table().split())
    assert "mirrored on other numbers of chips, the batch of a chip as compiled for v5e:8x8" in text
    # 2 · 7/8 · 4 · 18,696 bytes, and the loss
    assert "compiled for v5e:2x4: all-reduce 127.8 KiB modelled, 127.8 KiB compiled; +0.0%" in text
    assert "below 90% on 64 to 4096 chips; on 4096 it takes" in text  # so small is it
    data = json.loads(found.to_json())["scaling"][0]
    assert [point["chips"] for point in data["points"]] == [1, 64, 4096]
    assert data["points"][2]["slices"] == 16
    assert data["checks"][0]["difference"] == check.difference


def test_a_plan_that_is_not_scaled_says_nothing_of_it():
    assert Plan("tiny", 10, ()).scaling == ()
