"""`tf.config`: devices are listed and configured without starting JAX."""

import jax
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core import env
from replicax._core.env import visible_gpus
from replicax._core.machine import startup
from replicax.tf import _config

from helpers import run_python

CPU = tf.config.PhysicalDevice("/physical_device:CPU:0", "CPU")
GPUS = [tf.config.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU") for n in range(2)]


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, and JAX before its start."""
    settings = {}
    monkeypatch.setattr(startup, "count_accelerators", lambda kind: 2 if kind == "GPU" else 0)
    monkeypatch.setattr(startup, "is_started", lambda: False)
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.setattr(_config, "_visible", {})
    monkeypatch.setattr(_config, "_growth", {})
    return settings


def test_programs_configure_after_they_have_looked():
    said = run_python(
        """
        import replicax.tf as tf
        gpus = tf.config.list_physical_devices("GPU")
        tpus = tf.config.experimental.list_physical_devices("TPU")
        (cpu,) = tf.config.list_physical_devices("CPU")
        tf.config.list_logical_devices()
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 3)
        print(gpus, tpus, cpu.name, len(tf.config.list_logical_devices("CPU")))
        import replicax as rx
        print(rx.MirroredStrategy().num_replicas_in_sync)
        print(tf.config.list_logical_devices("CPU")[2], tf.config.list_physical_devices())
        """,
        JAX_NUM_CPU_DEVICES="1",
        JAX_PLATFORMS="cpu",
    )
    cpu = "PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')"
    logical = "LogicalDevice(name='/device:CPU:2', device_type='CPU')"
    assert said.splitlines() == ["[] [] /physical_device:CPU:0 3", "3", f"{logical} [{cpu}]"]


def test_a_cluster_can_be_joined_after_devices_were_listed():
    assert (
        run_python(
            """
            import jax
            import replicax.tf as tf
            from replicax.launch._ports import free_ports
            tf.config.list_physical_devices(), tf.config.list_logical_devices()
            tf.test.is_gpu_available(), tf.test.gpu_device_name()
            with free_ports(1) as (port,):
                jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=1, process_id=0)
            print("joined")
            """
        )
        == "joined\n"
    )


def test_another_number_of_devices_comes_too_late():
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 8)
    assert len(tf.config.get_logical_device_configuration(CPU)) == 8
    with pytest.raises(RuntimeError, match="JAX has started already"):
        tf.config.experimental.set_virtual_device_configuration(
            CPU, [tf.config.experimental.VirtualDeviceConfiguration()]
        )


def test_gpus_are_hidden(two_gpus):
    assert tf.config.list_physical_devices("GPU") == GPUS
    tf.config.set_visible_devices(GPUS[1], "GPU")
    assert two_gpus["jax_cuda_visible_devices"] == "1"
    assert tf.config.get_visible_devices() == [CPU, GPUS[1]]
    assert [d.name for d in tf.config.list_logical_devices("GPU")] == ["/device:GPU:0"]
    tf.config.set_visible_devices([], "GPU")
    assert two_gpus["jax_platforms"] == "cpu"
    assert tf.config.get_visible_devices("GPU") == []


def test_only_known_devices_are_visible(two_gpus):
    unknown = tf.config.PhysicalDevice("/physical_device:GPU:7", "GPU")
    with pytest.raises(ValueError, match="GPU:7.*Choose from"):
        tf.config.set_visible_devices([unknown], "GPU")
    tf.config.set_visible_devices(GPUS, "GPU")
    assert two_gpus == {}


def test_a_gpu_is_not_divided(two_gpus):
    one = tf.config.LogicalDeviceConfiguration()
    tf.config.set_logical_device_configuration(GPUS[0], [one])
    for parts in ([one] * 2, [tf.config.LogicalDeviceConfiguration(memory_limit=1024)]):
        with pytest.raises(ValueError, match="XLA_PYTHON_CLIENT_MEM_FRACTION"):
            tf.config.set_logical_device_configuration(GPUS[0], parts)


def test_memory_grows(two_gpus, monkeypatch):
    monkeypatch.setenv(env.PREALLOCATE, "")
    for gpu in GPUS:
        tf.config.experimental.set_memory_growth(gpu, True)
    assert env.os.environ[env.PREALLOCATE] == "false"
    assert tf.config.experimental.get_memory_growth(GPUS[0])
    with pytest.raises(ValueError, match="memory growth of .*CPU:0"):
        tf.config.experimental.set_memory_growth(CPU, True)


def test_determinism(two_gpus, monkeypatch):
    monkeypatch.setenv(env.XLA_FLAGS, "--a=b")
    tf.config.experimental.enable_op_determinism()
    assert env.os.environ[env.XLA_FLAGS] == f"--a=b {env.DETERMINISTIC}"


def test_determinism_of_a_cpu_needs_nothing():
    tf.config.experimental.enable_op_determinism()


def test_memory_of_a_cpu_is_not_counted():
    with pytest.raises(ValueError, match="'CPU:0'"):
        tf.config.experimental.get_memory_info("CPU:0")
    assert tf.config.experimental.get_device_details(CPU) == {}


def test_gpus_are_counted_by_the_driver(tmp_path, monkeypatch):
    amd = tmp_path / "amd"
    monkeypatch.setattr(startup.nvidia, "count", lambda: 3)
    for number in range(3):
        (amd / str(number)).mkdir(parents=True)
        (amd / str(number) / "properties").write_text(f"simd_count {number}\nother 1\n")
    monkeypatch.setattr(startup, "is_started", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(startup, "jax_setting", lambda name: None)
    monkeypatch.setattr(startup, "has_plugin", lambda kind: kind == "cuda")
    assert startup.count_accelerators("GPU", amd=amd) == 3
    monkeypatch.setattr(startup, "has_plugin", lambda kind: kind == "rocm")
    assert startup.count_accelerators("GPU", amd=amd) == 2
    monkeypatch.setattr(startup, "has_plugin", lambda kind: False)
    assert startup.count_accelerators("GPU", amd=amd) == 0
    monkeypatch.setattr(startup, "jax_setting", lambda name: "cpu")
    monkeypatch.setattr(startup, "has_plugin", lambda kind: True)
    assert startup.count_accelerators("GPU", amd=amd) == 0


@pytest.mark.parametrize(
    ("text", "count"), [(None, 4), ("", 0), ("1,3", 2), ("7", 0), ("-1", 0), ("GPU-ab,MIG-c", 2)]
)
def test_hidden_gpus_do_not_count(text, count):
    assert len(visible_gpus(4, {} if text is None else {"CUDA_VISIBLE_DEVICES": text})) == count


def test_settings_that_are_noted():
    tf.config.set_soft_device_placement(False)
    assert not tf.config.get_soft_device_placement()
    tf.config.set_soft_device_placement(True)  # as before: it is for the whole process
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(3)
    threads = tf.config.threading
    assert threads.get_inter_op_parallelism_threads() == 2
    assert threads.get_intra_op_parallelism_threads() == 3
    tf.config.optimizer.set_jit(True)
    tf.config.optimizer.set_experimental_options({"layout_optimizer": True})
    assert tf.config.optimizer.get_jit() == "autoclustering"
    assert tf.config.optimizer.get_experimental_options() == {"layout_optimizer": True}


def test_precision():
    assert tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(False)
    assert jax.config.jax_default_matmul_precision == "highest"
    tf.config.experimental.enable_tensor_float_32_execution(True)
    assert jax.config.jax_default_matmul_precision is None


def test_functions_run_eagerly():
    tf.config.run_functions_eagerly(True)
    try:
        assert tf.config.functions_run_eagerly()
        assert rx.function(lambda x: f"{x}")(1) == "1"
    finally:
        tf.config.experimental_run_functions_eagerly(False)


def test_names_of_clusters():
    assert tf.config.experimental_connect_to_cluster is rx.config.experimental_connect_to_cluster
