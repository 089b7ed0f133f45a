"""What a device sends on other numbers of chips: by hand, and compared with compiled programs."""

import json

import keras

import replicax as rx
from replicax._tools.plan.hlo import Collective
from replicax._tools.plan.result import Plan, Row
from replicax._tools.plan.scaling import scale, with_halves


def test_half_of_a_slice_is_compiled_if_it_is_the_only_one_of_its_kind():
    assert with_halves(["v3:4x4", "v4:4x4x4", "v5e:2x2", "gpu:8", "cpu:x"]) == [
        *("v3:2x4", "v3:4x4", "v4:2x4x4", "v4:4x4x4", "v5e:2x2", "gpu:4", "gpu:8", "cpu:x")
    ]


def row(topology, devices, *collectives):
    return Row(
        **{"topology": topology, "strategy": "mirrored", "devices": devices, "replicas": devices},
        **{"batch": 2 * devices, "chip": None, "capacity": None, "fits": None, "needed": None},
        **{"memory": None, "flops": 1.0, "memory_traffic": 1.0, "collectives": collectives},
        **{"wire": {}, "largest": None, "compile_seconds": 0.0},
    )


def test_the_batch_of_a_chip_stays():
    (found,) = scale([row("cpu:4", 4, Collective("all-reduce", 12, 4))], (1, 4, 1000))
    alone, four, many = found.points
    assert (alone.batch, alone.wire) == (2, {})
    assert (four.batch, four.wire) == (8, {"all-reduce": 18})  # 2 · 3/4 · 12
    assert (many.batch, many.wire) == (2000, {"all-reduce": 24})


def test_chips_of_two_devices():
    (found,) = scale([row("v3:2x2", 8, Collective("all-reduce", 800, 8))], (1, 8))
    assert [(one.devices, one.batch) for one in found.points] == [(2, 4), (16, 32)]
    assert found.points[0].wire == {"all-reduce": 800}


def test_pieces_shrink_and_whole_arrays_stay():
    kinds = (Collective("reduce-scatter", 100, 4), Collective("all-gather", 400, 4))
    moved = Collective("collective-permute", 100, 4)
    (found,) = scale([row("cpu:4", 4, *kinds, moved)], (1, 8))
    alone, eight = found.points
    assert alone.wire == {}
    # 7/8 of 400; half of 100
    assert eight.wire == {"reduce-scatter": 350, "all-gather": 350, "collective-permute": 50}


def test_the_chief_pays_for_each_worker_of_an_agreement():
    (found,) = scale([row("cpu:4", 4, Collective("all-reduce", 12, 4))], (4, 4096))
    # 25 µs each: 4 · 25 µs = 0.1 ms; 4,096 · 25 µs = 102.4 ms
    assert [round(1e6 * one.agreement) for one in found.points] == [100, 102_400]


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
    # 2 · 7/8 · 4 · 18,696 bytes, and the loss
    assert "all-reduce 127.8 KiB modelled, 127.8 KiB compiled" in " ".join(found.table().split())
    assert "102.40 ms" in found.table()  # of the chief's CPU, for an agreement of 4,096 workers
    data = json.loads(found.to_json())["scaling"][0]
    assert [point["chips"] for point in data["points"]] == [1, 64, 4096]
    assert data["checks"][0]["difference"] == check.difference


def test_a_plan_that_is_not_scaled_says_nothing_of_it():
    assert Plan("tiny", 10, ()).scaling == ()
