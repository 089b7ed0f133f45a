"""A process that is forked after JAX has started says so, instead of waiting for ever."""

import sys

import pytest

from helpers import run_python

PROGRAM = """
import multiprocessing, os, sys, warnings
warnings.simplefilter("ignore")
import keras, numpy as np, replicax as rx

def told(call):
    try:
        call()
        return "done"
    except rx.errors.BackendAlreadyInitialized as error:
        return f"{f'process {parent}' in str(error)} {'spawn' in str(error)}"

def child(queue):
    queue.put([told(call) for call in calls])

def fork_error():
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    print(*queue.get(), sep=chr(10))
    process.join()

context, parent = multiprocessing.get_context("fork"), os.getpid()
calls = [lambda: sum(rx.data.Dataset.range(3))]
fork_error()
rx.testing.virtual_devices(2)
strategy = rx.MirroredStrategy()
with strategy.scope():
    variable = keras.Variable(1.0)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
add = rx.function(lambda: variable + 1.0)
add()
x = np.zeros((4, 1), "float32")
model.fit(x, x, verbose=0)
print("forks")
calls = [
    lambda: sum(rx.data.Dataset.range(3)),
    lambda: strategy.run(lambda: variable + 1.0),
    lambda: strategy.reduce("SUM", 1.0, axis=None),
    strategy.scope().__enter__,
    lambda: list(strategy.experimental_distribute_dataset([x])),
    add,
    lambda: model.fit(x, x, verbose=0),
    lambda: rx.testing.virtual_devices(2),
    lambda: rx.MirroredStrategy(),
]
fork_error()
add()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_a_fork_after_the_start_of_jax_is_told_and_never_waits():
    assert run_python(PROGRAM).splitlines() == ["done", "forks", "done", *(8 * ["True True"])]


LOCKED = """
import os, threading, time
import jax, replicax as rx
rx.OneDeviceStrategy("CPU:0")
from jax._src import xla_bridge
held, over = threading.Event(), threading.Event()

def start():  # as a slow start of a backend does
    with xla_bridge._backend_lock:
        held.set()
        over.wait(3)

threading.Thread(target=start).start()
held.wait()
child = os.fork()
if not child:
    os._exit(0)
over.set()
end = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
    time.sleep(0.01)
if ended == (0, 0):
    os.kill(child, 9)
print(ended[1] if ended[0] else "never")
"""


def test_a_fork_while_another_thread_starts_jax_has_an_end():
    assert run_python(LOCKED, PYTHONWARNINGS="ignore") == "0\n"
