"""Options of a data set: what they may be, and how they are handed on."""

import pytest

import replicax as rx

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
