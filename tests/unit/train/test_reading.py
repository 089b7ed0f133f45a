import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import CheckpointError, UsageError


def test_variables_by_name(tmp_path):
    layer = keras.layers.Dense(2, name="dense")
    layer(np.ones((1, 3), "float32"))
    layer.bias.assign([1.0, 2.0])
    checkpoint = rx.train.Checkpoint(layer, step=keras.Variable(4, name="step"))
    path = checkpoint.save(tmp_path / "ckpt")
    own = {"bias": [2], "kernel": [3, 2], "save_counter": [], "step": []}
    names = [(f"{name}/.ATTRIBUTES/VARIABLE_VALUE", shape) for name, shape in own.items()]
    assert rx.train.list_variables(path) == names
    assert rx.train.list_variables(tmp_path) == names  # the latest in the folder
    bias = rx.train.load_variable(path, "bias/.ATTRIBUTES/VARIABLE_VALUE")
    np.testing.assert_array_equal(bias, [1.0, 2.0])
    reader = rx.train.load_checkpoint(path)
    assert reader.get_tensor("save_counter/.ATTRIBUTES/VARIABLE_VALUE") == 1
    assert reader.has_tensor("step/.ATTRIBUTES/VARIABLE_VALUE")
    assert reader.get_variable_to_dtype_map()["step/.ATTRIBUTES/VARIABLE_VALUE"] == np.int32
    with pytest.raises(UsageError, match="'kernel'"):
        reader.get_tensor("kernel")
    with pytest.raises(CheckpointError, match="none.*`checkpoint.json`"):
        rx.train.list_variables(tmp_path / "none")


def test_objects_are_attributes():
    step = keras.Variable(1)
    checkpoint = rx.train.Checkpoint(step=step)
    assert checkpoint.step is step
    with pytest.raises(AttributeError, match="model"):
        _ = checkpoint.model
