"""Input signatures, concrete functions and compiled methods of `rx.function`."""

import gc
import inspect
import pickle
import weakref

import cloudpickle
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.data import ArraySpec

from helpers import batch_of

VECTOR = ArraySpec((None,), "float32")
mismatch = rx.errors.SignatureMismatch


@rx.function(input_signature=[VECTOR, {"scale": ArraySpec((), "float32")}])
def scaled(x, options, extra=1):
    return x * options["scale"] * extra


def test_arguments_become_arrays_of_the_signature():
    assert scaled([1, 2], {"scale": 3}).tolist() == [3.0, 6.0]
    before = scaled.num_traces
    assert scaled(np.ones(2), options={"scale": jnp.float32(2)}).tolist() == [2.0, 2.0]
    assert scaled.num_traces == before
    assert scaled(np.ones(3), {"scale": 1}, extra=5).tolist() == [5.0] * 3
    assert scaled.input_signature == (VECTOR, {"scale": ArraySpec((), "float32")})
    assert scaled(keras.Variable([1.0, 2.0]), {"scale": 1}).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.ones((2, 2)), {"scale": 1}), r"'x' must be .* got float32\[2, 2\]"),
        ((jnp.ones(2, "int32"), {"scale": 1}), r"'x' must be .* got int32\[2\]"),
        ((np.ones(2), {"other": 1}), "'options' must be"),
        ((np.ones(2),), r"Pass \['options'\]"),
    ],
)
def test_other_arguments_are_refused(arguments, message):
    with pytest.raises(mismatch, match=message):
        scaled(*arguments)
    with pytest.raises(TypeError):
        scaled(*arguments)


def test_a_signature_of_too_many_specs_is_refused():
    with pytest.raises(mismatch, match="`input_signature` must be"):
        rx.function(lambda x: x, input_signature=[VECTOR, VECTOR])
    with pytest.raises(mismatch, match="`input_signature` must be"):
        rx.function(lambda x: x, input_signature=VECTOR)


def test_the_spec_of_a_distributed_data_set(mirrored):
    dataset = mirrored.experimental_distribute_dataset([(np.ones((4, 3), "float32"), np.arange(4))])

    @rx.function(input_signature=[dataset.element_spec])
    def step(batch):
        parts = mirrored.run(lambda x, y: x.sum() + y.sum(), args=batch)
        return mirrored.reduce("SUM", parts, axis=None)

    (batch,) = dataset
    assert float(step(batch)) == 12.0 + 6.0
    with pytest.raises(mismatch, match=r"'batch' must be .* got float32\[2, 2\]"):
        step(batch_of(mirrored, (np.ones((4, 2), "float32"), np.arange(4))))
    step(batch_of(mirrored, (np.ones((3, 3), "float32"), np.arange(3))))


def test_mirrored_values_fit(mirrored):
    ones = mirrored.run(lambda: jnp.ones(2))
    fn = rx.function(lambda x: mirrored.reduce("SUM", x, axis=None), input_signature=[VECTOR])
    assert fn(ones).tolist() == [2.0, 2.0]


def test_a_concrete_function():
    @rx.function
    def fn(x, *, times=3):
        return {"out": x * times, "rows": x.shape[0] and None}

    concrete = fn.get_concrete_function(ArraySpec((None, 2), "float32"))
    assert concrete(np.ones((4, 2)))["out"].tolist() == [[3.0, 3.0]] * 4
    assert str(concrete.structured_outputs["out"]) == "TensorSpec(shape=(None, 2), dtype=float32)"
    (spec,), named = concrete.structured_input_signature
    assert (spec.shape, spec.dtype, spec.name, named) == ((None, 2), "float32", "x", {"times": 3})
    assert concrete.name == "fn"
    with pytest.raises(mismatch, match=r"'x' must be .* got float32\[4, 3\]"):
        concrete(np.ones((4, 3)))
    with pytest.raises(rx.errors.UsageError, match="Pass them as well"):
        concrete()
    by_name = fn.get_concrete_function(x=np.ones((4, 2), "float32"), times=5)
    assert by_name(np.ones((4, 2)))["out"][0].tolist() == [5.0, 5.0]
    with pytest.raises(mismatch, match="'x' must be"):
        by_name(np.ones((3, 2)))


def test_a_concrete_function_of_the_signature():
    concrete = scaled.get_concrete_function()
    assert concrete([1.0], {"scale": 2}).tolist() == [2.0]
    assert str(concrete.structured_outputs) == "TensorSpec(shape=(None,), dtype=float32)"
    assert "called with (ArraySpec" in scaled.pretty_printed_concrete_signatures()
    assert scaled.experimental_get_tracing_count() == scaled.num_traces


class Adder:
    def __init__(self, start):
        self.total = keras.Variable(start)

    @rx.function(input_signature=[ArraySpec((), "float32")])
    def add(self, x):
        self.total.assign_add(x)
        return self.total + 0.0


class Slotted:
    __slots__ = ("n",)

    @rx.function
    def add(self, x):
        return x + self.n


def test_a_method_lets_go_of_its_object():
    one, ten = Adder(1.0), Adder(10.0)
    assert [float(adder.add(1)) for adder in (one, ten, one)] == [2.0, 11.0, 3.0]
    assert Adder.add.num_traces == 2
    gone, kept = weakref.ref(one), ten.add
    del one, ten
    gc.collect()
    assert gone() is None
    assert Adder.add.num_traces == 1
    assert float(kept(1)) == 12.0


def test_objects_that_cannot_be_watched_stay_apart():
    totals = []
    for n in range(3):
        slotted = Slotted()
        slotted.n = n
        totals.append(float(slotted.add(jnp.float32(1))))
    assert totals == [1.0, 2.0, 3.0]


def test_a_bound_method():
    adder = Adder(0.0)
    assert list(inspect.signature(adder.add).parameters) == ["x"]
    assert adder.add == adder.add
    assert len({adder.add, adder.add, Adder(0.0).add}) == 2
    assert float(adder.add.get_concrete_function()(x=2)) == 2.0
    assert adder.add.python_function is Adder.add.python_function
    assert not hasattr(adder.add, "other")


def test_a_function_can_be_pickled():
    again = pickle.loads(cloudpickle.dumps(rx.function(lambda x: x + 1.0)))
    assert float(again(np.float32(2))) == 3.0


@pytest.mark.parametrize("wrong", [2.5, [1.5], "2", b"2", 2j])
def test_what_is_no_integer_is_not_made_one(wrong):
    fn = rx.function(lambda x: x, input_signature=[ArraySpec(None, "int32")])
    assert int(fn(2)) == 2
    with pytest.raises(TypeError):
        fn(wrong)
