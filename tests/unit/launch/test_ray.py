"""`replicax run --ray` and `rx.launch.run(ray=)` on a real Ray with two nodes, one with GPUs.

These have names only.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from rays import ray_cluster

import replicax as rx
from replicax._processes.prometheus import series

from exposition import strict
from helpers import completed, start_program, wait_until
from processes import running_with, wait_for_pids

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes"),
]

# A worker that says who it is and where, with a module beside it that travels with the folder.
PROGRAM = """
import json, os, pathlib, sys, time
import beside
task = json.loads(os.environ["TF_CONFIG"])["task"]
of = len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
gpu, restart = os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ["RX_RESTART"]
print(f"{task['index']} of {of} {beside.word} gpu={gpu} restart={restart}", flush=True)
pathlib.Path(os.environ["DIR"], f"pid-{os.getpid()}").touch()
does = sys.argv[1] if restart == "0" and task["index"] == 1 else "end"
if does == "fail":
    raise ValueError("no good")
if does == "die":
    os.kill(os.getpid(), 9)
if sys.argv[1] == "stay":
    time.sleep(600)
"""
FIT = """
import keras, numpy as np, replicax as rx
strategy = rx.{strategy}()
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((32, 2), "float32")
losses = model.fit(x, x[:, :1], epochs=3, batch_size=8, verbose=0).history["loss"]
print("learns", losses[-1] < losses[0], flush=True)
"""

# The chief kills a member in the second epoch and shows what each update came to.
KILLS = """
import json, os, pathlib, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
folder, me = pathlib.Path(os.environ["DIR"]), f"{task['type']}-{task['index']}"
folder.joinpath(f"{me}-{os.environ['RX_RESTART']}").write_text(str(os.getpid()))
import keras, numpy as np, replicax as rx
strategy = rx.ParameterServerStrategy(snapshot_seconds=0.1)
class Fault(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            os.kill(int(folder.joinpath(f"{sys.argv[1]}-0").read_text()), 9)
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)  # so that an epoch lasts longer than from one snapshot to the next
with strategy.scope():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.ones((80, 2), "float32")
options = {"batch_size": 8, "verbose": 0, "callbacks": [Fault()]}
losses = model.fit(x, x[:, :1], epochs=4, **options).history["loss"]
back, deadline = folder.joinpath(f"{sys.argv[1]}-1"), time.monotonic() + 60
while not back.exists() and time.monotonic() < deadline:  # training may end before it is back
    time.sleep(0.1)
recoveries = rx.coordinator.ClusterCoordinator(strategy).recoveries
lost, steps = sum(one.lost_updates for one in recoveries), int(model.optimizer.iterations.value)
print("kept", steps + lost, len(recoveries), back.exists(), losses[-1] < losses[0], flush=True)
"""
# A training that waits in its second epoch, when it has a backup of the first.
KEEPS = """
import os, pathlib, sys, time
import keras, numpy as np, replicax as rx
folder = pathlib.Path(os.environ["DIR"])
strategy = rx.MultiWorkerMirroredStrategy()
began = []
class Waits(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        began.append(epoch)
        if epoch == 1 and os.environ["RX_RESTART"] == "0":
            folder.joinpath(f"waits-{strategy.cluster_resolver.task_id}").touch()
            time.sleep(600)  # until the node of one is removed, which ends both
def make():
    layer = keras.layers.Dense(1, kernel_initializer="ones")
    model = keras.Sequential([keras.Input((2,)), layer])
    model.compile("sgd", "mse")
    return model
with strategy.scope():
    model = make()
x = np.arange(32.0, dtype="float32").reshape(16, 2) / 32
options = {"batch_size": 8, "shuffle": False, "verbose": 0}
callbacks = [rx.callbacks.BackupAndRestore(folder / "backup"), Waits()]
model.fit(x, x[:, :1], epochs=3, callbacks=callbacks, **options)
alone = make()
alone.fit(x, x[:, :1], epochs=3, **options)
same = all(np.allclose(*two) for two in zip(model.get_weights(), alone.get_weights()))
of = strategy.num_replicas_in_sync
print("of", of, "began", began, "same", same, flush=True)
"""


@pytest.fixture(scope="module")
def ray():
    """Five cores and two GPUs on two nodes."""
    with ray_cluster({"num_cpus": 3}, {"num_cpus": 2, "num_gpus": 2}) as started:
        yield started


@pytest.fixture
def folder(tmp_path):
    """A working folder with the programs; each process has it in `DIR`."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(PROGRAM)
    (tmp_path / "work" / "beside.py").write_text("word = 'travels'")
    for name in ("MultiWorkerMirroredStrategy", "ParameterServerStrategy"):
        (tmp_path / "work" / f"{name}.py").write_text(FIT.replace("{strategy}", name))
    (tmp_path / "work" / "kills.py").write_text(KILLS)
    (tmp_path / "work" / "keeps.py").write_text(KEEPS)
    yield tmp_path
    wait_until(lambda: not running_with(f"DIR={tmp_path}"))


def start(folder, address, *words):
    command = [sys.executable, "-m", "replicax", "run", "--ray", address]
    command = [*command, "--env", f"DIR={folder}", *words]
    return start_program(command, cwd=folder / "work", stderr=subprocess.STDOUT)


def outcome(folder, address, *words):
    with start(folder, address, *words) as launcher:
        said = launcher.communicate(timeout=120)[0]
    return launcher.returncode, said


def test_workers_run_in_a_copy_of_the_folder_and_each_has_its_gpu(ray, folder):
    words = ["--workers", "2", "--gpus-per-worker", "1", "train.py", "end"]
    returncode, said = outcome(folder, ray.address, *words)
    assert returncode == 0, said
    shown = sorted(line for line in said.splitlines() if "travels" in line)
    assert [line.split(" gpu=")[0] for line in shown] == [
        "[worker 0] 0 of 2 travels",
        "[worker 1] 1 of 2 travels",
    ]
    assert {line.split("gpu=")[1][0] for line in shown} == {"0", "1"}


@pytest.mark.parametrize("fault", ["fail", "die"])
def test_after_a_failure_all_start_again(ray, folder, fault):
    words = ["--workers", "2", "--max-restarts", "1", "train.py", fault]
    returncode, said = outcome(folder, ray.address, *words)
    assert returncode == 0, said
    shown = [
        line[-1] for line in said.splitlines() if line.startswith("[worker") and "restart=" in line
    ]
    assert sorted(shown) == ["0", "0", "1", "1"]
    assert ("ValueError: no good" if fault == "fail" else "SIGKILL") in said


def test_a_failure_is_that_of_all_with_its_exit_code(ray, folder):
    returncode, said = outcome(folder, ray.address, "--workers", "2", "train.py", "fail")
    assert returncode == 1
    assert "ValueError: no good" in said


def test_fewer_workers_start_where_there_is_no_room_for_all(ray, folder):
    words = ["--workers", "4", "--min-workers", "1", "--gpus-per-worker", "1", "train.py", "end"]
    returncode, said = outcome(folder, ray.address, *words)
    assert returncode == 0, said
    assert "1 of 2 travels" in said


def test_who_asks_for_too_much_is_told_what_there_is_and_can_end_it(ray, folder):
    with start(folder, ray.address, "--workers", "9", "train.py", "end") as launcher:
        told = next(line for line in launcher.stdout if "waiting for Ray" in line)
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=60)
    assert "of 5 CPU" in told
    assert launcher.returncode == 130


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_launcher(ray, folder, signum):
    with start(folder, ray.address, "--workers", "2", "train.py", "stay") as launcher:
        wait_for_pids(folder, 2)
        launcher.send_signal(signum)
        launcher.communicate(timeout=60)
    assert launcher.returncode in (128 + signum, -signum)
    # The fixture sees that none is left.


@pytest.mark.parametrize("strategy", ["MultiWorkerMirroredStrategy", "ParameterServerStrategy"])
def test_a_model_learns_and_its_steps_are_in_the_metrics(ray, folder, strategy):
    servers = ["--ps", "1"] if strategy.startswith("Parameter") else []
    path = folder / "train.prom"
    words = ["--workers", "2", *servers, "--metrics", str(path), f"{strategy}.py"]
    returncode, said = outcome(folder, ray.address, *words)
    assert returncode == 0, said
    assert said.count("learns True") == (1 if servers else 2)
    found = strict(path.read_text())
    who = ["chief 0"] if servers else [0, 1]
    assert [found[series("replicax_steps_total", worker=one)] for one in who] == [12] * len(who)


@pytest.mark.parametrize(("member", "recoveries"), [("worker-1", 0), ("ps-0", 1)])
def test_a_member_that_is_killed_comes_back_and_each_update_counts(ray, folder, member, recoveries):
    words = ["--workers", "2", "--ps", "1", "kills.py", member]
    returncode, said = outcome(folder, ray.address, *words)
    assert returncode == 0, said
    # 4 epochs of 10 batches: those that the server has, and those that it says it has lost
    assert f"kept 40 {recoveries} True True" in said, said


def test_fewer_workers_go_on_from_the_checkpoint_after_one_is_lost_for_good(folder):
    with ray_cluster({"num_cpus": 1}, {"num_cpus": 1}) as small:
        words = ["--workers", "2", "--min-workers", "1", "--max-restarts", "1"]
        words += ["--devices-per-worker", "1", "keeps.py"]
        with start(folder, small.address, *words) as launcher:
            wait_until(lambda: len(list(folder.glob("waits-*"))) == 2, 100)
            (node,) = small.worker_nodes
            small.remove_node(node, allow_graceful=False)
            said = launcher.communicate(timeout=200)[0]
    assert launcher.returncode == 0, said
    assert "of 1 began [1, 2] same True" in said, said


def test_a_ray_that_is_not_there_is_told(folder):
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    returncode, said = outcome(folder, address, "train.py", "end")
    assert returncode == 2
    assert address in said


@pytest.mark.parametrize(
    "words",
    [
        ["--workers", "2", "--hosts", "a,b", "train.py"],
        ["--workers", "2", "--min-workers", "3", "train.py"],
        ["../train.py"],
    ],
)
def test_what_does_not_go_together_is_refused(folder, words):
    (folder / "train.py").touch()
    assert outcome(folder, "auto", *words)[0] == 2


def where(word):

    import jax

    return word, jax.process_index(), os.environ["CUDA_VISIBLE_DEVICES"]


def test_a_function_runs_there(ray):
    found = rx.launch.run(where, 2, args=["here"], ray=ray.address, gpus_per_worker=1)
    assert [one[:2] for one in found] == [("here", 0), ("here", 1)]
    assert {one[2] for one in found} == {"0", "1"}
    with pytest.raises(rx.errors.ClusterError):
        rx.launch.run(where, 9, args=["here"], ray="auto", timeout=1)


def of_chief(word):
    import keras
    import numpy as np

    import replicax as rx

    strategy = rx.ParameterServerStrategy()  # the others serve from here on, and return nothing
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = np.ones((32, 2), "float32")
    losses = model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0).history["loss"]
    return word, losses[-1] < losses[0]


def test_a_function_uses_parameter_servers_there(ray, tmp_path):
    options = {"ray": ray.address, "ps": 1, "pack": True, "log_dir": tmp_path}
    assert rx.launch.run(of_chief, 1, args=["here"], **options) == [("here", True)]
    assert {path.name for path in tmp_path.iterdir()} == {"chief-0.log", "worker-0.log", "ps-0.log"}


def test_a_worker_without_room_returns_none(ray):
    options = {"ray": ray.address, "gpus_per_worker": 1, "min_workers": 1}
    assert rx.launch.run("math:sqrt", 3, args=[9.0], **options) == [3.0, 3.0, None]


def its_raylet():
    """The process of its node, among its ancestors."""
    pid = os.getpid()
    while "raylet" not in Path(f"/proc/{pid}/comm").read_text():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.mark.parametrize(("pack", "machines"), [(False, 2), (True, 1)])
def test_workers_are_packed_on_one_machine_or_spread(ray, pack, machines):
    import ray as its

    rx.launch.run("math:sqrt", 1, args=[9.0], ray=ray.address)  # connects this process
    wait_until(lambda: its.available_resources().get("CPU") == 5)  # Ray spreads if there is room
    found = rx.launch.run(its_raylet, 2, ray=ray.address, pack=pack, env={"RX_JOIN": "0"})
    assert len(set(found)) == machines


class Trial:
    """An actor whose program runs in a thread, as one of Ray Tune does."""

    def run(self):
        found: list = []
        thread = Thread(
            target=lambda: found.extend(rx.launch.run("math:sqrt", 2, args=[9.0], ray="auto"))
        )
        thread.start()
        thread.join(100)
        return found


def test_workers_start_inside_a_trial_of_ray_tune(ray):
    import ray as its

    rx.launch.run("math:sqrt", 1, args=[9.0], ray=ray.address)  # connects this process, too
    actor: Any = its.remote(Trial)
    assert its.get(actor.remote().run.remote(), timeout=120) == [3.0, 3.0]


# What `ray job submit` does: it sends the folder, and runs the command in it on the cluster.
JOB = """
import json, os, ray, subprocess, sys
address = sys.argv[1]
ray.init(address, runtime_env={"working_dir": "."})
@ray.remote
def job():
    own = json.loads(ray.get_runtime_context().get_runtime_env_string())
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps({"runtime_env": own})}
    env = os.environ | job | {"RAY_ADDRESS": address}
    return subprocess.run(COMMAND, env=env, timeout=100, text=True, capture_output=True)
done = ray.get(job.remote(), timeout=120)
print(done.returncode, done.stdout, done.stderr)
"""


def test_workers_of_a_ray_job_run_in_its_folder(folder):
    command = [sys.executable, "-m", "replicax", "run", "--ray", "auto", "--env", f"DIR={folder}"]
    text = JOB.replace("COMMAND", repr([*command, "--workers", "2", "train.py", "end"]))
    # Two nodes of one machine would unpack the folder at one place.
    with ray_cluster({"num_cpus": 3}) as alone:
        said = completed([sys.executable, "-c", text, alone.address], cwd=folder / "work")
    assert said.stdout.startswith("0 "), said
    assert said.stdout.count("of 2 travels") == 2
