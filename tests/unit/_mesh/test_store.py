"""Where variables live: the placements, and what is lent and kept."""

import jax
import jax.numpy as jnp
import keras
import pytest
from jax.sharding import PartitionSpec as P

from replicax._core.errors import UsageError
from replicax._core.placement import VariableSpec
from replicax._core.topology import Topology
from replicax._mesh.store import SMALL, DeviceStore, anywhere, by_layout, on, replicated, zero

FOUR = Topology.local([f"CPU:{i}" for i in range(4)])
GRID = Topology.local([f"CPU:{i}" for i in range(8)], model_parallel=2)  # 4 replicas of 2
TWO = Topology.local(["CPU:0", "CPU:1"])
CPUS = jax.devices("cpu")
SPEC = VariableSpec("dense/kernel", (2, 3), "float32")


def ids(devices):
    return sorted(device.id for device in devices)


@pytest.mark.parametrize(
    ("placement", "resident", "devices"),
    [
        (replicated(TWO), True, [0, 1]),
        (anywhere(), True, [0, 1]),
        (on(CPUS[0]), False, [0]),
        (on(CPUS[5]), False, [5]),
    ],
    ids=["replicated", "anywhere", "on a replica", "elsewhere"],
)
def test_where_variables_live(placement, resident, devices):
    store = DeviceStore(placement, TWO)
    assert store.is_resident is resident
    assert ids(store.devices) == devices


def test_a_store_of_one_device_is_resident_there():
    one = Topology.single("CPU:4")
    assert DeviceStore(on(CPUS[4]), one).is_resident
    assert not DeviceStore(on(CPUS[0]), one).is_resident


def test_layouts():
    assert DeviceStore(anywhere(), TWO).layout(SPEC) is None
    assert ids(DeviceStore(on(CPUS[5]), TWO).layout(SPEC).device_set) == [5]
    assert ids(DeviceStore(replicated(TWO), TWO).layout(SPEC).device_set) == [0, 1]


def test_a_resident_store_lends_and_keeps_what_it_is_given():
    store = DeviceStore(replicated(TWO), TWO)
    values = [jnp.ones(2)]
    assert store.fetch(values) is values
    assert store.put_back(values) is values


def test_a_central_store_copies_to_the_replicas_and_back():
    store = DeviceStore(on(CPUS[5]), TWO)
    assert not store.fetches_copies  # all CPUs read the same memory
    home = jax.device_put(jnp.arange(3.0), store.layout(SPEC))
    (lent,) = store.fetch([home])
    assert ids(lent.devices()) == [0, 1]
    assert lent.tolist() == [0.0, 1.0, 2.0]
    (kept,) = store.put_back([lent * 2])
    assert ids(kept.devices()) == [5]
    assert kept.tolist() == [0.0, 2.0, 4.0]


def spec_of(shape, path="dense/kernel", parameter=None):
    """A variable; with `parameter` (or "") what an optimizer keeps for it."""
    is_slot = parameter is not None
    return VariableSpec(path, shape, "float32", is_slot=is_slot, parameter=parameter or "")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((64, 32), P("replica", None)),  # the largest axis
        ((32, 64), P(None, "replica")),
        ((64, 64), P("replica", None)),  # the first of the largest
        ((66, 32), P(None, "replica")),  # 4 does not divide 66
        ((66, 33), P()),
        ((SMALL,), P("replica")),
        ((SMALL // 2, 2), P("replica", None)),
        ((SMALL // 4 - 4, 4), P()),  # too small
        ((), P()),
    ],
)
def test_what_optimizers_keep_is_divided_along_its_largest_axis(shape, expected):
    placement = zero(FOUR, parameters=False)
    assert placement(spec_of(shape, parameter="")).spec == expected
    assert placement(spec_of(shape)).spec == P()
    assert zero(FOUR, parameters=True)(spec_of(shape)).spec == expected


def test_what_is_divided_over_a_model_is_divided_once_more_over_the_replicas():
    placement = zero(
        GRID, parameters=False, base=by_layout(GRID, {"dense/kernel": (None, "model")})
    )
    kernel, slot = spec_of((64, 128)), spec_of((64, 128), "adam/m", "dense/kernel")
    assert placement(kernel).spec == P(None, "model")
    assert placement(slot).spec == P("replica", "model")


def test_dividing_over_replicas_leaves_a_variable_of_no_layout_alone():
    assert zero(FOUR, parameters=True, base=anywhere())(spec_of((64, 64))) is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((64, 32), P("model", None)), ((3, 3, 16, 65), P(None, None, "model", None)),
     ((2048,), P()), ((2, 2), P()), ((65, 65), P())],
)  # fmt: skip
def test_auto_divides_kernels_over_the_model(shape, expected):
    assert by_layout(GRID, "auto")(spec_of(shape)).spec == expected
    assert by_layout(GRID, "auto")(spec_of(shape, "adam/m", "dense/kernel")).spec == expected


KERAS_MAP = keras.distribution.LayoutMap(None)
KERAS_MAP["dense.*kernel"] = (None, "model")


@pytest.mark.parametrize("layout_map", [KERAS_MAP, {"dense.*kernel": (None, "model")}])
def test_a_map_says_where_variables_and_their_slots_live(layout_map):
    placement = by_layout(GRID, layout_map)
    assert placement(spec_of((4, 6), "dense_1/kernel")).spec == P(None, "model")
    assert placement(spec_of((6,), "dense_1/bias")).spec == P()
    assert placement(spec_of((4, 6), "adam/dense_m", "dense_1/kernel")).spec == P(None, "model")
    assert placement(spec_of((4, 6), "adam/dense_kernel")).spec == P()


def test_keras_names_of_axes_are_ours():
    layout_map = {"a": ("batch", "model"), "b": ("data",), "c": ("replica",)}
    placement = by_layout(GRID, layout_map)
    assert placement(spec_of((4, 4), "a")).spec == P("replica", "model")
    assert [placement(spec_of((4, 4), path)).spec for path in "bc"] == [P("replica")] * 2


def test_an_axis_that_the_mesh_has_not_divides_nothing():
    assert by_layout(FOUR, {"a": (None, "model")})(spec_of((3, 3), "a")).spec == P(None, None)


def test_a_whole_path_goes_before_patterns():
    layout_map = {"dense/.*": ("model", None), "dense/kernel": (None, "model")}
    assert by_layout(GRID, layout_map)(spec_of((4, 4))).spec == P(None, "model")


@pytest.mark.parametrize(
    ("layout_map", "shape", "said"),
    [
        ({"dense/.*": ("model",), ".*/kernel": (None, "model")}, (4, 4), "several patterns"),
        ({".*": ("rows",)}, (4, 4), "does not fit variable 'dense/kernel'"),
        ({".*": (None, None, "model")}, (4, 4), "does not fit variable 'dense/kernel'"),
        ({".*": (None, "model")}, (4, 5), "axis of length 5 of variable 'dense/kernel'"),
    ],
)
def test_layouts_that_fit_no_variable_are_refused(layout_map, shape, said):
    with pytest.raises(UsageError, match=said):
        by_layout(GRID, layout_map)(spec_of(shape))
