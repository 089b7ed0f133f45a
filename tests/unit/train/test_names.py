"""Variables by the names of attributes, as TensorFlow has them, and restored by these."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import NothingRestored, UsageError

END = "/.ATTRIBUTES/VARIABLE_VALUE"


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.l1 = keras.layers.Dense(2)
        self.more = [keras.layers.Dense(1)]

    def call(self, x):
        return self.more[0](self.l1(x))


X = np.ones((4, 3), "float32")


def saved(tmp_path, **others):
    net = Net()
    net(X)
    net.l1.bias.assign([1.0, 2.0])
    return net, rx.train.Checkpoint(net=net, **others).write(tmp_path / "here")


def test_the_names_are_those_of_attributes(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9), "mse")
    model.fit(X, np.ones(4), verbose=0)
    _, path = saved(tmp_path, model=model, some={"step": [keras.Variable(1)]})
    names = {name.removesuffix(END) for name, _ in rx.train.list_variables(path)}
    assert names >= {
        *("net/l1/kernel", "net/l1/bias", "net/more/0/kernel", "net/more/0/bias"),
        *("model/layer_with_weights-0/kernel", "model/layer_with_weights-0/bias"),
        *("model/optimizer/iterations", "model/optimizer/momentums/0"),
        *("some/step/0", "save_counter"),
    }
    found = rx.train.load_variable(path, f"model/layer_with_weights-0/kernel{END}")
    np.testing.assert_array_equal(found, model.layers[1].kernel)


def test_a_part_of_a_model_is_restored_by_another_checkpoint(tmp_path):
    net, path = saved(tmp_path)
    bias, kernel = keras.Variable([0.0, 0.0]), keras.Variable(np.zeros((3, 2)))
    layer = rx.train.Checkpoint(bias=bias)
    status = rx.train.Checkpoint(net=rx.train.Checkpoint(l1=layer)).restore(path)
    assert bias.numpy().tolist() == [1.0, 2.0]
    status.assert_existing_objects_matched()
    left = {f"net/{name}" for name in ("l1/kernel", "more/0/kernel", "more/0/bias")}
    assert set(status.unused) == left
    layer.kernel = kernel  # it gets its value now
    np.testing.assert_array_equal(kernel, net.l1.kernel)
    assert set(status.unused) == left - {"net/l1/kernel"}
    with pytest.raises(NothingRestored):
        status.assert_consumed()


def test_a_layer_of_a_model_waits_until_it_is_built(tmp_path):
    net, path = saved(tmp_path)
    layer = keras.layers.Dense(2)
    status = rx.train.Checkpoint(net=rx.train.Checkpoint(l1=layer)).restore(path)
    assert status.waiting == ("net/l1",)
    np.testing.assert_allclose(layer(X), net.l1(X))
    assert status.waiting == ()


def test_a_model_is_restored_from_its_parts(tmp_path):
    net, _ = saved(tmp_path)
    parts = rx.train.Checkpoint(l1=net.l1, more=net.more)
    path = rx.train.Checkpoint(net=parts).write(tmp_path / "parts")
    again = Net()
    again(X)
    rx.train.Checkpoint(net=again).restore(path).assert_consumed()
    np.testing.assert_allclose(again(X), net(X))
    path = rx.train.Checkpoint(net=rx.train.Checkpoint(l1=net.l1)).write(tmp_path / "less")
    before = again.get_weights()
    with pytest.raises(UsageError, match="more/0"):
        rx.train.Checkpoint(net=again).restore(path)
    for one, other in zip(again.get_weights(), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_another_shape_or_name_is_refused(tmp_path):
    _, path = saved(tmp_path)
    wrong = keras.Variable([0.0, 0.0, 0.0])
    for name, match in (("bias", r"\(2,\).*\(3,\)"), ("gamma", "'net/l1/gamma'")):
        layer = rx.train.Checkpoint(**{name: wrong})
        with pytest.raises(UsageError, match=match):
            rx.train.Checkpoint(net=rx.train.Checkpoint(l1=layer)).restore(path)
    assert wrong.numpy().tolist() == [0.0, 0.0, 0.0]
