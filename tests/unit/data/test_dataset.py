"""What a data set is beside its elements, and its options."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset


def numbers(ds):
    return [int(x) for x in ds]


def test_each_iterator_has_a_position_of_its_own():
    ds = Dataset.range(4)
    first, second = iter(ds), iter(ds)
    assert [int(next(first)), int(next(first)), int(next(second))] == [0, 1, 0]
    assert iter(first) is first
    assert numbers(first) == [2, 3]
    assert next(first, None) is None


def test_an_iterator_has_the_names_of_tf_data():
    iterator = iter(Dataset.range(2))
    assert int(iterator.get_next()) == 0
    assert iterator.element_spec == rx.data.ArraySpec((), np.int64)


@pytest.mark.parametrize(
    ("ds", "what"),
    [(Dataset.range(2).repeat(), "infinite"), (Dataset.range(2).filter(bool), "unknown")],
)
def test_a_length_is_known_and_finite(ds, what):
    with pytest.raises(TypeError, match=f"{what}.*cardinality"):
        len(ds)
    assert bool(ds)


def test_what_is_empty_is_not_nothing():
    assert bool(Dataset.range(0))


def test_its_text_shows_how_it_is_made_without_making_anything():
    ds = Dataset.zip(Dataset.range(0), Dataset.range(3)).map((1).__truediv__).batch(2)
    assert repr(ds) == "<Dataset Batch(Map(Zip(Range(), Range())))>"


def test_elements_as_arrays_of_numpy():
    ds = Dataset.range(2).map(lambda x: {"x": jnp.full(1, x), "y": (x, "a", None)})
    first, second = ds.as_numpy_iterator()
    assert type(second["x"]) is np.ndarray
    assert (second["x"].tolist(), second["y"]) == ([1], (1, "a", None))


Dataset = rx.data.Dataset
Options = rx.data.Options
Policy = rx.data.AutoShardPolicy
UsageError = rx.errors.UsageError


def options(deterministic=None, policy=Policy.AUTO, threads=None):
    made = Options()
    made.deterministic = deterministic
    made.experimental_distribute.auto_shard_policy = policy
    made.threading.private_threadpool_size = threads
    return made


def test_policies_have_the_numbers_of_tf_data():
    assert {policy.name: policy.value for policy in Policy} == {
        "OFF": -1, "AUTO": 0, "FILE": 1, "DATA": 2, "HINT": 3
    }  # fmt: skip


def test_every_transformation_hands_options_on():
    ds = Dataset.range(8).with_options(options(False, Policy.OFF))
    ds = ds.map(abs).shuffle(2).batch(2).prefetch(1).repeat(2).unbatch().concatenate(ds).cache()
    assert ds.options() == options(False, Policy.OFF)
    assert Dataset.range(8).options() == Options()


def test_later_options_replace_what_they_set():
    ds = Dataset.range(8).with_options(options(False, Policy.OFF))
    ds = ds.with_options(options(threads=3)).with_options(options(policy=Policy.DATA))
    assert ds.options() == options(False, Policy.DATA, 3)


def test_a_data_set_does_not_change_with_the_options_it_was_given():
    given = options(policy=Policy.OFF)
    ds = Dataset.range(8).with_options(given)
    given.experimental_distribute.auto_shard_policy = Policy.FILE
    ds.options().deterministic = False
    ds.options().experimental_distribute.auto_shard_policy = Policy.FILE
    assert ds.options() == options(policy=Policy.OFF)


@pytest.mark.parametrize(
    ("part", "field", "fields"),
    [
        (Options(), "service", "autotune, deterministic"),
        (Options().threading, "max_threads", "private_threadpool_size"),
        (Options().experimental_distribute, "num_devices", "auto_shard_policy"),
    ],
)
def test_a_field_that_is_none_is_refused(part, field, fields):
    with pytest.raises(UsageError, match=f"'{field}'.*{fields}"):
        setattr(part, field, 1)


@pytest.mark.parametrize("value", ["FILE", "file", 1, rx.data.AutoShardPolicy.FILE])
def test_a_policy_may_be_named(value):
    options = rx.data.Options()
    options.experimental_distribute.auto_shard_policy = value
    assert options.experimental_distribute.auto_shard_policy is rx.data.AutoShardPolicy.FILE


def test_an_option_that_only_tf_data_has_is_named():
    with pytest.raises(AttributeError, match="'experimental_stats'"):
        _ = rx.data.Options().experimental_stats
