"""What a process reports of its training if `RX_METRICS_FILE` is set."""

import replicax as rx
from replicax._core import events
from replicax._processes.prometheus import MARK, series

from exposition import strict
from helpers import begun_threads, run_python

TRAIN = """
import os
import replicax as rx
import keras
import numpy as np

strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
assert "RX_METRICS_FILE" not in os.environ  # child processes would write there, too
x = np.ones((70, 4), "float32")

def model(strategy):
    with strategy.scope():
        made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    return made
"""
FIT = """
made = model(strategy)
made.fit(x, x[:, :1], batch_size=30, epochs=2, verbose=0, validation_data=(x, x[:, :1]))
"""
LOCAL_STEPS = """
made = model(rx.MultiWorkerMirroredStrategy(sync_every=2))
made.fit(x, x[:, :1], batch_size=30, epochs=2, verbose=0)
"""
LOOPS = """
batches = strategy.experimental_distribute_dataset(
    rx.data.Dataset.from_tensor_slices(x).batch(30)
)
for batch in batches:
    strategy.run(lambda rows: rows.sum(), args=(batch,))

@rx.function
def step(batch):
    return strategy.run(lambda rows: rows.sum(), args=(batch,))

for batch in batches:
    step(batch)
"""
COUNTED = [series(f"replicax_{name}_total") for name in ("steps", "examples")]


def reported(tmp_path, *parts):
    path = tmp_path / "a.prom"
    run_python("".join((TRAIN, *parts)), RX_METRICS_FILE=str(path))
    assert list(tmp_path.iterdir()) == [path]
    return strict(path.read_text())


def test_without_the_variable_nobody_counts_and_no_thread_runs():
    before = list(events.listeners)
    rx.OneDeviceStrategy("CPU:0")
    assert events.listeners == before and events.totals is None
    assert not begun_threads("replicax-metrics")


def test_steps_of_fit_and_of_own_loops_are_counted_with_their_rows(tmp_path):
    found = reported(tmp_path, FIT, LOOPS)
    assert [found[one] for one in COUNTED] == [6 + 6, 140 + 140]
    assert series("replicax_waited_seconds_total") not in found  # it has no others


def test_fit_that_runs_on_replicas_counts_each_batch_once(tmp_path):
    found = reported(tmp_path, LOCAL_STEPS)
    assert [found[one] for one in COUNTED] == [6, 140]


def test_a_launcher_elsewhere_hears_it_between_two_marks():
    code = "import os, sys\nos.dup2(1, 2)\n" + TRAIN + "print('of the program')"
    said = run_python(code, RX_METRICS_FILE="-").encode().split(MARK)
    assert b"of the program" in b"".join(said[::2])
    assert strict(said[1].decode())[COUNTED[0]] == 0
