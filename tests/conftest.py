"""Eight virtual CPU devices for every test, and a police for what tests leave behind."""

import gc
import os
import signal

from before_jax import FLAGS, ON_GPUS

# Before JAX starts. NPROC sizes XLA:CPU's thread pool: a second belt against its dead-lock,
# beside the engine's own rule of one step in flight.
os.environ["JAX_NUM_CPU_DEVICES"] = "8"
os.environ["NPROC"] = "8"
os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Nothing of the tests, or of what they start, goes into the folder of the user.
os.environ["RX_COMPILATION_CACHE"] = "off"
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
if ON_GPUS:  # processes of the tests share them; products keep all digits of float32
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")

from replicax._core.env import chips_on_bus, without_idle_libtpu

# libtpu is installed to compile with; no process of the tests shall look for a TPU with it.
os.environ.update(without_idle_libtpu(os.environ, chips_on_bus()))

import hypothesis
import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.launch._ports import free_ports
from replicax.testing import MATRIX

from helpers import LEAN, a_test_begins, begun_threads

pytest_plugins = ["tiers"]

# JAX counts its devices now: a test that comes first and asks for another number changes nothing.
jax.devices()

# A shell that runs the tests in the background has Ctrl-C ignored, `nohup` a closed terminal, and
# what the tests start inherits that: those that signal programs would wait for ever.
for _number, _usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


# The same examples on every machine, however slow: a rare failure would be nobody's.
hypothesis.settings.register_profile(
    "same",
    max_examples=60,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.load_profile("same")


def pytest_collection_finish():
    """What is there now stays to the end: no search for garbage needs to look at it again.

    Tracing makes many objects that are no garbage yet: to search after each 700 of them takes a
    tenth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    os.environ.update(LEAN)  # not earlier, since the processes that run tests are to draw


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    environment = dict(os.environ)
    a_test_begins()
    yield
    rx.experimental_set_strategy(None)
    if left := [thread for thread in begun_threads() if not thread.daemon]:
        gc.collect()  # some end with what they work for: callbacks of a `fit` that failed, readers
        for thread in left:
            thread.join(20)
    left = [thread for thread in left if thread.is_alive()]
    assert not left, f"the test left threads running: {left}"
    names = (environment.keys() | os.environ.keys()) - {"PYTEST_CURRENT_TEST"}
    changed = {name for name in names if environment.get(name) != os.environ.get(name)}
    assert not changed, f"the test changed the environment: {changed}"


@pytest.fixture(autouse=True)
def _elements_as_the_program_asks(request):
    # `replicax.tf` asks for it when it is imported, for the whole process.
    is_of_tf = "tf" in request.path.parts
    # Not the fixture `monkeypatch`, which would end after the check above.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("replicax._core.seams.speaks_tensorflow", is_of_tf)
        yield


@pytest.fixture(autouse=True)
def _same_start():
    keras.utils.set_random_seed(0)
    np.random.seed(0)
    yield
    keras.backend.clear_session(free_memory=False)


# Two and four replicas of central storage take the same way as three, which divide less evenly;
# a test that wants them names them.
if ON_GPUS:  # one GPU suffices for these
    MATRIX.update(mirrored_1=None, central_storage_1=None)
USUAL = [name for name in MATRIX if name not in ("central_storage_2", "central_storage_4")]


@pytest.fixture(params=USUAL, scope="session")
def strategy(request):
    """Every strategy of the matrix; conformance tests take it."""
    if ON_GPUS:
        return on_gpus(request.param)
    return MATRIX[request.param]()


def on_gpus(name):
    """The strategy of a name with GPUs instead of CPUs, if there are as many."""
    gpus = [device for device in jax.local_devices() if device.platform == "gpu"]
    kind, _, count = name.rpartition("_")
    needed = int(count) if count.isdigit() else 1
    if needed > len(gpus):
        pytest.skip(f"needs {needed} GPUs")
    chosen = [f"GPU:{number}" for number in range(needed)]
    if name == "one_device":
        return rx.OneDeviceStrategy("GPU:0")
    if kind == "mirrored":
        return rx.MirroredStrategy(chosen)
    if kind == "central_storage":
        return rx.CentralStorageStrategy(chosen, "CPU:0")
    return MATRIX[name]()


@pytest.fixture
def address():
    """With a free port of this machine, which nobody else gets."""
    with free_ports(1) as (port,):
        yield f"127.0.0.1:{port}"


@pytest.fixture
def mirrored():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"])
