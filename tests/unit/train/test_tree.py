"""A checkpoint is a tree: objects are attributes at any depth, set before or after `restore`."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax import tf
from replicax._core.errors import UsageError


def module_of(value):
    module = tf.Module()
    module.v = tf.Variable(value)
    module.inner = tf.Module()
    module.inner.many = [tf.Variable(value + 1), {"deep": tf.Variable(value + 2)}]
    module.parent = module  # a cycle
    return module


def net_of(value):
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile(keras.optimizers.SGD(value, momentum=0.9), "mse")
    net.optimizer.build(net.trainable_variables)
    net.set_weights([np.full(weight.shape, value) for weight in net.get_weights()])
    return net


def checkpoint_of(value):
    inner = tf.train.Checkpoint(v=tf.Variable(value))
    return tf.train.Checkpoint(step=rx.train.Value(value), inner=inner)


# Every kind of node, and the values to compare.
KINDS = {
    "variable": (tf.Variable, lambda one: [one.numpy()]),
    "list": (
        lambda value: [tf.Variable(value), rx.train.Value(value)],
        lambda one: [one[0].numpy(), one[1].value],
    ),
    "tuple": (lambda value: (tf.Variable(value),), lambda one: [one[0].numpy()]),
    "dict": (lambda value: {"a": {"b": tf.Variable(value)}}, lambda one: [one["a"]["b"].numpy()]),
    "module": (module_of, lambda one: [variable.numpy() for variable in one.variables]),
    "model": (
        net_of,
        lambda one: [*one.get_weights(), *(v.numpy() for v in one.optimizer.variables)],
    ),
    "optimizer": (keras.optimizers.Adam, lambda one: [one.learning_rate.numpy()]),
    "metric": (
        lambda value: [metric := keras.metrics.Mean(), metric.update_state(value)][0],
        lambda one: [one.result()],
    ),
    "checkpoint": (checkpoint_of, lambda one: [one.step.value, one.inner.v.numpy()]),
}


def assert_same(found, wanted):
    assert len(found) == len(wanted)
    assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("is_deferred", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_node_is_restored_where_it_was_saved(tmp_path, kind, is_deferred):
    make, values = KINDS[kind]
    saved, fresh = make(0.25), make(0.5)
    checkpoint = rx.train.Checkpoint()
    checkpoint.one = {"below": saved}
    path = checkpoint.write(tmp_path / "ckpt")
    again = rx.train.Checkpoint()
    if is_deferred:
        status = again.restore(path)
        assert status.unused
        again.one = {"below": fresh}
    else:
        again.one = {"below": fresh}
        status = again.restore(path)
    status.assert_consumed()
    assert_same(values(fresh), values(saved))


def test_what_is_added_to_a_list_a_dict_or_a_module_gets_its_value(tmp_path):
    first = rx.train.Checkpoint(many=[tf.Variable(1.0)], named={"a": tf.Variable(2.0)})
    first.module = module_of(3.0)
    path = first.write(tmp_path / "ckpt")
    later = rx.train.Checkpoint(many=[], named={}, module=tf.Module())
    status = later.restore(path)
    one, two, three = tf.Variable(0.0), tf.Variable(0.0), tf.Variable(0.0)
    later.many.append(one)
    later.named["a"] = two
    later.module.v = three
    assert [float(v) for v in (one, two, three)] == [1.0, 2.0, 3.0]
    with pytest.raises(AssertionError, match="module/inner/many/0"):
        status.assert_consumed()
    later.module.inner = tf.Module()
    later.module.inner.many = [tf.Variable(0.0), {"deep": tf.Variable(0.0)}]
    status.assert_consumed()
    assert float(later.module.inner.many[1]["deep"]) == 5.0


def test_a_module_makes_its_variable_in_a_compiled_step(tmp_path):
    class Lazy(tf.Module):
        def __call__(self, x):
            if not hasattr(self, "w"):
                self.w = tf.Variable(1.0)
            return self.w * x

    first, second = Lazy(), Lazy()
    first(2.0)
    first.w.assign(5.0)
    path = rx.train.Checkpoint(net=first).write(tmp_path / "ckpt")
    rx.train.Checkpoint(net=second).restore(path)
    assert float(tf.function(second)(2.0)) == 10.0


def test_a_checkpoint_of_which_nothing_was_restored_is_noticed(tmp_path):
    path = rx.train.Checkpoint(a=tf.Variable(1.0)).write(tmp_path / "ckpt")
    for status in (rx.train.Checkpoint().restore(path), rx.train.Checkpoint().restore(None)):
        for check in ("consumed", "existing_objects_matched", "nontrivial_match"):
            with pytest.raises(AssertionError):
                getattr(status, f"assert_{check}")()
        status.expect_partial()


def test_an_object_without_a_value_is_noticed(tmp_path):
    path = rx.train.Checkpoint(a=tf.Variable(1.0)).write(tmp_path / "ckpt")
    checkpoint = rx.train.Checkpoint(a=tf.Variable(0.0))
    status = checkpoint.restore(path).assert_existing_objects_matched()
    checkpoint.late = tf.Variable(7.0)
    with pytest.raises(AssertionError, match="'late'"):
        status.assert_existing_objects_matched()
    assert float(checkpoint.late) == 7.0


@pytest.mark.parametrize("value", [3, "text", object(), np.ones(2), {tf.Module()}])
def test_what_would_not_be_saved_is_refused_when_it_is_set(value):
    checkpoint = rx.train.Checkpoint()
    with pytest.raises(UsageError, match="x/y.*rx.train.Value"):
        checkpoint.x = {"y": value}
    with pytest.raises(UsageError, match="save_counter"):
        checkpoint.save_counter = tf.Variable(1)


def test_an_object_that_is_taken_out_is_not_saved(tmp_path):
    checkpoint = rx.train.Checkpoint(a=tf.Variable(1.0), b=tf.Variable(2.0))
    del checkpoint.b
    names = [name for name, _ in rx.train.list_variables(checkpoint.write(tmp_path / "ckpt"))]
    assert [name.partition("/")[0] for name in names] == ["a", "save_counter"]
    with pytest.raises(AttributeError):
        _ = checkpoint.b
