"""What a data set function and a value function are told."""

import dataclasses

import pytest

import replicax as rx


def test_without_arguments_it_is_the_only_pipeline():
    context = rx.InputContext()
    assert dataclasses.astuple(context) == (1, 0, 1)
    assert context.get_per_replica_batch_size(7) == 7
    assert str(context) == "tf.distribute.InputContext(input pipeline id 0, total: 1)"


@pytest.mark.parametrize(("batch", "replicas", "expected"), [(12, 6, 2), (6, 6, 1), (0, 3, 0)])
def test_a_replica_has_its_share_of_the_batch(batch, replicas, expected):
    assert rx.InputContext(2, 1, replicas).get_per_replica_batch_size(batch) == expected


def test_an_indivisible_batch_size_comes_with_two_that_fit():
    with pytest.raises(
        rx.errors.UsageError, match="`global_batch_size`.* 6 replicas, got 13"
    ) as caught:
        rx.InputContext(2, 1, 6).get_per_replica_batch_size(13)
    assert "Use 12 or 18." in str(caught.value)


def test_a_batch_smaller_than_the_replicas_is_not_told_to_be_empty():
    with pytest.raises(rx.errors.UsageError, match="`global_batch_size`.* 4 replicas") as caught:
        rx.InputContext(1, 0, 4).get_per_replica_batch_size(3)
    assert "Use 4." in str(caught.value)


def test_a_value_context_names_the_replica():
    assert dataclasses.astuple(rx.experimental.ValueContext()) == (0, 1)
    context = rx.experimental.ValueContext(1, 2)
    assert (context.replica_id_in_sync_group, context.num_replicas_in_sync) == (1, 2)


@pytest.mark.parametrize("context", [rx.InputContext(2, 1, 6), rx.experimental.ValueContext(1, 2)])
def test_contexts_are_values(context):
    assert context == dataclasses.replace(context)
    assert len({context, dataclasses.replace(context)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.num_replicas_in_sync = 3
