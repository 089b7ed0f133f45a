"""`replicax run --metrics`: real workers, read while they train, and after a restart."""

import re
import urllib.request
from pathlib import Path

import replicax as rx
from replicax._processes.prometheus import series

from exposition import strict
from helpers import wait_until

# It trains until it is told that it was seen.
TRAIN = """
import os
from pathlib import Path

import keras
import numpy as np
import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")


class UntilSeen(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        # All workers stop at the same epoch.
        seen = Path(os.environ["DIR"], "seen").exists()
        self.model.stop_training = strategy.cluster_resolver is None or any(told(seen))


def told(seen):
    from replicax._core.channel import current

    return current().exchange("seen", seen)


x = np.ones((64, 4), "float32")
model.fit(x, x[:, :1], batch_size=16, epochs=100000, verbose=0, callbacks=[UntilSeen()])
"""
FAIL_ONCE = """
import os, sys
sys.exit(3 if os.environ["RX_RESTART"] == "0" else 0)
"""
NAMES = ("steps_total", "examples_total", "examples_per_second", "waited_seconds_total")


def value(found, name, worker):
    return found.get(series(f"replicax_{name}", worker=worker), 0)


def test_two_workers_are_read_while_they_train(launch, script, tmp_path):
    run = launch("--workers", "2", "--devices-per-worker", "1", "--metrics", "0", script(TRAIN))
    place = re.search(r"http://127\.0\.0\.1:[0-9]+/metrics", run.stderr.readline())[0]

    def scraped():
        with urllib.request.urlopen(place, timeout=60) as answer:
            return strict(answer.read().decode())

    def both_train():
        found = scraped()
        return all(value(found, name, worker) > 0 for name in NAMES for worker in (0, 1))

    wait_until(both_train, seconds=150)
    found = scraped()
    for worker in (0, 1):
        assert value(found, "worker_up", worker) == 1
        # A half of each batch, of 16 rows.
        assert value(found, "examples_total", worker) == 8 * value(found, "steps_total", worker)
    (tmp_path / "seen").touch()
    _, err = run.communicate(timeout=150)
    assert run.returncode == 0, err


def test_a_restart_and_the_end_are_in_the_file(launch, script, tmp_path):
    options = ("--max-restarts", "1", "--metrics", str(tmp_path / "a.prom"))
    run = launch("--workers", "2", *options, script(FAIL_ONCE))
    _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    found = strict((tmp_path / "a.prom").read_text())
    for worker in (0, 1):
        told = [value(found, f"worker_{name}", worker) for name in ("restarts_total", "up")]
        assert told == [1, 0]
        assert found[series("replicax_worker_exit_code", worker=worker)] == 0


def test_a_server_that_comes_back_alone_is_counted(launch, script, tmp_path):
    path = script("""
        import json, os, pathlib, sys, time
        task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
        again = pathlib.Path(os.environ["DIR"], "again")
        if task == "ps" and os.environ["RX_RESTART"] == "0":
            sys.exit(3)
        if task == "ps":
            again.touch()
        while not again.exists():
            time.sleep(0.01)
    """)
    options = ("--ps", "1", "--metrics", str(tmp_path / "a.prom"))
    run = launch("--workers", "1", *options, path)
    _, err = run.communicate(timeout=100)
    assert run.returncode == 0, err
    found = strict((tmp_path / "a.prom").read_text())
    counts = [value(found, "worker_restarts_total", who) for who in ("ps 0", "chief 0", 0)]
    assert counts == [1, 0, 0]


def test_from_python(tmp_path):
    path = tmp_path / "a.prom"
    rx.launch.run("os:getpid", num_workers=2, metrics=path, env={"RX_JOIN": "0"})
    found = strict(Path(path).read_text())
    assert [value(found, "worker_up", worker) for worker in (0, 1)] == [0, 0]
    assert sum(name == "replicax_worker_info" for name, _ in found) == 2
