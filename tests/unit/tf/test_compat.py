"""`tf.compat`: texts and bytes, `v2`, and what is kept of `v1`."""

import logging
import pickle
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from absl import app, flags

from replicax import tf
from replicax.tf._names import FIRST_IN_V1, OTHERS_IN_V1
from replicax.tf.compat import v2
from replicax.tf.compat.v1 import ConfigProto


def test_texts_and_bytes():
    assert tf.compat.as_bytes("é") == b"\xc3\xa9"
    assert tf.compat.as_bytes(b"a") == b"a"
    assert tf.compat.as_text(b"\xc3\xa9") == tf.compat.as_str("é") == "é"
    assert tf.compat.as_str(b"a") == tf.compat.as_text("a") == tf.compat.as_str_any("a") == "a"
    assert tf.compat.as_str_any(3) == "3"
    assert tf.compat.as_str_any(b"3") == "3"
    assert tf.compat.path_to_str("a") == "a"
    assert tf.compat.path_to_str(Path("a")) == "a"


def test_version_2_is_tf_itself():
    assert v2 is tf
    assert tf.compat.v2 is tf


def test_options_of_a_session_are_held():
    config = ConfigProto(allow_soft_placement=True)
    config.inter_op_parallelism_threads = 3
    config.gpu_options.allow_growth = True
    assert config.allow_soft_placement and config.gpu_options.allow_growth
    assert tf.compat.v1.ConfigProto is ConfigProto
    for session in (tf.compat.v1.Session, tf.compat.v1.InteractiveSession):
        session(config=config).close()
        assert not hasattr(session(config=config), "run")


def test_what_version_1_is_kept_for():
    v1 = tf.compat.v1
    v1.enable_v2_behavior()
    assert v1.executing_eagerly_outside_functions()
    log = tf.get_logger()
    before = log.level  # `get_verbosity` gives what is inherited, too
    v1.logging.set_verbosity(v1.logging.ERROR)
    try:
        assert log is logging.getLogger("replicax") and log.level == logging.ERROR
        assert v1.logging.get_verbosity() == v1.logging.ERROR
    finally:
        log.setLevel(before)


def test_the_rest_says_what_to_do():
    with pytest.raises(AttributeError, match="tf.compat.v1.placeholder.*written for TensorFlow 2"):
        _ = tf.compat.v1.placeholder
    with pytest.raises(AttributeError, match="tf.compat.forward_compatible"):
        _ = tf.compat.forward_compatible
    assert {"v1", "as_str"} <= set(dir(tf.compat))
    assert "ConfigProto" in dir(tf.compat.v1)


def test_a_name_that_means_the_same_in_version_1_is_that_of_version_2():
    v1 = tf.compat.v1
    assert v1.log is tf.math.log and v1.reduce_mean is tf.reduce_mean
    assert v1.nn.relu is tf.nn.relu and not hasattr(v1, "keras")  # whose LSTM is another
    assert {"relu", "moments"} <= set(dir(v1.nn)) and "dropout" not in dir(v1.nn)


@pytest.mark.parametrize("name", OTHERS_IN_V1)
def test_a_name_that_means_something_else_in_version_1_says_what_to_use(name):
    found, *parts = tf.compat.v1, *name.split(".")[1:]
    with pytest.raises(AttributeError) as raised:
        for part in parts:
            found = getattr(found, part)
    assert OTHERS_IN_V1[name] in str(raised.value)


IMAGE = np.arange(4.0).reshape(1, 2, 2, 1)
# As version 1 computes them, with arguments by position as far as both versions order them alike.
IN_V1 = {
    "argmax": (([[1, 5], [7, 2]], 0), {}, [1, 0]),
    "boolean_mask": (([[1, 2], [3, 4]], [True, False]), {"axis": 1}, [[1], [3]]),
    "expand_dims": (([1, 2], 1, "name"), {}, [[1], [2]]),
    "gather": (([[1, 2], [3, 4]], [1], None), {"axis": 1}, [[2], [4]]),
    "math.bincount": (([0, 2, 2], None, 4), {}, [1, 0, 2, 0]),
    "nn.conv2d": ((IMAGE, np.ones((2, 2, 1, 1)), [1, 1, 1, 1], "VALID"), {}, [[[[6]]]]),
    "nn.max_pool": ((IMAGE, [1, 2, 2, 1], [1, 1, 1, 1], "VALID"), {}, [[[[3]]]]),
    "pad": (([1], [[1, 0]], "CONSTANT"), {"constant_values": 7}, [7, 1]),
    "reduce_sum": (([[1, 2], [3, 4]], 1, True, "name"), {}, [[3], [7]]),
    "strings.length": ((["é"],), {"unit": "UTF8_CHAR"}, [1]),
    "transpose": (([[1, 2]], [1, 0]), {}, [[1], [2]]),
}


@pytest.mark.parametrize("name", IN_V1)
def test_what_names_of_version_1_compute(name):
    args, named, expected = IN_V1[name]
    assert attrgetter(name)(tf.compat.v1)(*args, **named).tolist() == expected


@pytest.mark.parametrize("name", FIRST_IN_V1)
def test_arguments_in_another_order_than_in_version_1_are_refused(name):
    own, count = name.removeprefix("tf."), FIRST_IN_V1[name]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"v1.{own}` takes {count} arguments"):
        attrgetter(own)(tf.compat.v1)(*range(count), "name")


@pytest.mark.parametrize("name", FIRST_IN_V1)
def test_functions_of_version_1_are_sent_by_their_names(name):
    found = attrgetter(name.removeprefix("tf."))(tf.compat.v1)
    assert pickle.loads(pickle.dumps(found)) is found


def test_names_of_its_own(tmp_path):
    v1 = tf.compat.v1
    assert v1.to_float(3).dtype == tf.float32 and v1.to_int32(3.7).tolist() == 3
    path = str(tmp_path / "a")
    with v1.gfile.GFile(path, "w") as file:
        file.write("b")
    assert v1.gfile.Exists(path) and v1.gfile.Glob(str(tmp_path / "*")) == [path]


def test_devices_by_the_module_that_programs_import():
    from replicax.tf.python.client import device_lib

    cpu = device_lib.list_local_devices()[0]
    assert (cpu.device_type, cpu.name) == ("CPU", "/device:CPU:0")


def test_flags_and_app_are_those_of_absl():
    assert tf.compat.v1.flags.FLAGS is flags.FLAGS
    assert tf.compat.v1.app.run is app.run
