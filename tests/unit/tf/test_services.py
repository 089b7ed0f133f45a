"""The small namespaces: profiler, test, tpu, experimental, autograph; Python functions."""

import socket

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._tape.custom_gradient import recompute_grad


def test_profiles(tmp_path):
    options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=1)
    with tf.profiler.experimental.Profile(tmp_path, options):
        with tf.profiler.experimental.Trace("train", step_num=1, _r=1):
            jax.block_until_ready(jnp.ones(3) * 2)
        with tf.profiler.experimental.Trace("other"):
            pass
    assert list(tmp_path.rglob("*.xplane.pb"))


def test_a_profile_server(monkeypatch):
    ports = []
    monkeypatch.setattr(jax.profiler, "start_server", ports.append)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        tf.profiler.experimental.server.start(free.getsockname()[1])
    assert len(ports) == 1


class Cases(tf.test.TestCase):
    """What passes, and what does not."""

    def test_right(self):
        self.assertAllEqual(jnp.arange(2), [0, 1])
        self.assertAllClose({"a": jnp.ones(2)}, {"a": np.ones(2) + 1e-8})
        self.assertAllClose((jnp.ones(2), 1.0), [np.ones(2), 1.0])
        self.assertAllClose((jnp.float32(1), jnp.float32(2)), np.asarray([1.0, 2.0]))
        self.assertNotAllClose([1.0], [2.0])
        self.assertNotAllEqual([1.0], [2.0])
        self.assertAllInRange([1, 2], 1, 2)
        self.assertAllInSet([1, 2], {1, 2, 3})
        self.assertNear(1.0, 1.1, 0.2)
        self.assertArrayNear([1.0, 2.0], [1.1, 2.0], 0.2)
        self.assertDTypeEqual(np.ones(1, "int8"), "int8")
        self.assertEmpty([])
        self.assertLen([1], 1)
        with self.cached_session() as session:
            self.assertAllEqual(session.run(jnp.ones(1)), [1])
        self.assertAllClose([None, 1.0], [None, 1.0])
        ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
        self.assertAllClose(ragged, ragged)
        assert self.evaluate(jnp.ones(1)).tolist() == [1]
        assert self.get_temp_dir()

    def test_wrong(self):
        for check in (
            lambda: self.assertAllEqual([1], [2]),
            lambda: self.assertAllEqual([1, 1], [[1, 1]]),
            lambda: self.assertAllClose([1.0], [1.1]),
            lambda: self.assertArrayNear([1.0, 2.0], [1.3, 2.0], 0.2),
            lambda: self.assertAllClose([1.0], [[1.0]]),
            lambda: self.assertAllClose({"a": 1.0}, {"b": 1.0}),
            lambda: self.assertAllClose({"a": 1.0}, [1.0]),
            lambda: self.assertAllClose([{"a": 1.0}], 1.0),
            lambda: self.assertAllClose([None], [1.0]),
            lambda: self.assertAllClose([[1.0], [1.0, 2.0]], [[1.0]]),
            lambda: self.assertAllInRange([3], 1, 2),
            lambda: self.assertAllInSet([4], {1}),
            lambda: self.assertShapeEqual([1], 1),
            lambda: self.assertLen([1], 2),
        ):
            with self.assertRaises(AssertionError):
                check()


def test_what_jax_is_built_with():
    assert not tf.test.is_gpu_available() and tf.test.gpu_device_name() == ""
    assert not tf.test.is_built_with_gpu_support()
    assert tf.test.is_built_with_xla()


def test_the_names_of_tpus():
    assert tf.tpu.experimental.initialize_tpu_system is rx.tpu.experimental.initialize_tpu_system
    assert tf.tpu.experimental.DeviceAssignment is rx.tpu.experimental.DeviceAssignment


def test_arrays_of_other_libraries():
    shared = tf.experimental.dlpack.from_dlpack(np.arange(3, dtype="float32"))
    assert shared.tolist() == [0, 1, 2]
    assert tf.experimental.dlpack.to_dlpack(jnp.ones(1)) is not None


def test_autograph_leaves_alone_what_has_no_source():
    assert tf.autograph.experimental.do_not_convert(print) is print
    assert tf.autograph.experimental.do_not_convert()(print) is print
    tf.autograph.set_verbosity(3)
    tf.autograph.trace("x")


def test_the_clock():
    assert abs(float(tf.timestamp()) - __import__("time").time()) < 60


@pytest.mark.parametrize("devices", [1, 2])
def test_the_clock_goes_on_in_compiled_code(devices, monkeypatch):
    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
    told = rx.function(lambda: strategy.run(tf.timestamp))
    clock = 2.0**30  # 32 bits hold it, and its steps
    monkeypatch.setattr("time.time", lambda: clock)
    for clock in (2.0**30, 2.0**30 + 1024):
        values = strategy.experimental_local_results(told())
        assert [float(value) for value in values] == [clock] * devices


def test_functions_of_python_in_compiled_code():
    calls = []

    def twice(x):
        calls.append(1)
        return 2 * x

    fn = rx.function(lambda x: tf.numpy_function(twice, [x], "float32"))
    assert fn(jnp.arange(2.0)).tolist() == [0, 2]
    assert fn(jnp.arange(2.0)).tolist() == [0, 2]
    assert len(calls) == 2
    mean = rx.function(lambda x: tf.py_function(lambda x: x.numpy().mean(), [x], "float32"))
    assert float(mean(jnp.asarray(3.0))) == 3
    with pytest.raises(Exception, match=r"\(3,\), got \(\)"):
        jax.block_until_ready(mean(jnp.arange(3.0)))


@pytest.mark.parametrize("compiled", [False, True])
def test_a_result_of_python_that_32_bits_cannot_hold_is_refused(compiled):
    def call():
        return tf.py_function(lambda: 2**40 + 1, [], tf.int64)

    with pytest.raises(Exception, match="int64 values do not fit"):
        jax.block_until_ready(rx.function(call)() if compiled else call())


def test_functions_of_python_elsewhere():
    assert tf.numpy_function(np.cumsum, [jnp.arange(3)], "int32").tolist() == [0, 1, 3]
    low, high = tf.numpy_function(lambda x: (x.min(), x.max()), [np.arange(3)], ["int32", "int32"])
    assert (int(low), int(high)) == (0, 2)
    data = rx.data.Dataset.range(2).map(lambda x: tf.py_function(lambda x: x + 1, [x], "int64"))
    assert [int(x) for x in data] == [1, 2]
    names = tf.data.Dataset.from_tensor_slices(["a"])
    upper = names.map(lambda x: tf.py_function(lambda x: x.numpy().upper(), [x], tf.string))
    assert next(iter(upper)).numpy() == b"A"
    rows = names.map(lambda x: tf.numpy_function(lambda x: len(x.decode()), [x], tf.int64))
    assert int(next(iter(rows))) == 1
    assert tf.py_function(lambda: "text", [], "object").item() == "text"


def test_a_function_of_python_by_a_decorator():
    @tf.py_function(Tout=tf.float32)
    def doubled(x):
        return 2 * x.numpy()

    @tf.numpy_function(Tout=tf.float32)
    def halved(x):
        return x / 2

    assert doubled(tf.constant(3.0)).numpy() == 6.0
    assert float(tf.function(lambda x: halved(x))(tf.constant(3.0))) == 1.5


def test_what_a_data_set_is_reduced_to_has_numpy():
    assert tf.data.Dataset.range(4).reduce(0, lambda state, x: state + x).numpy() == 6


def test_the_tape_and_its_companions_are_replicax_own():
    assert tf.GradientTape is rx.GradientTape
    assert tf.custom_gradient is rx.custom_gradient
    assert tf.recompute_grad is recompute_grad
    assert tf.UnconnectedGradients.ZERO.value == "zero"


def test_stop_gradient():
    w, two = keras.Variable(3.0), jnp.float32(2.0)
    with tf.GradientTape() as tape:
        tape.watch(two)
        x, y = tf.stop_gradient((two, w), name="held")
        z = x * y * w + two
    # x·y by w, and 1
    assert [float(g) for g in tape.gradient(z, [w, two])] == [6.0, 1.0]
