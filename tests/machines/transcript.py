"""Print what two machines print, for docs/clusters.md.

    KERAS_BACKEND=jax PYTHONPATH=tests python -m machines.transcript

It needs what the tests of this folder need: Linux and its root. The machines are namespaces of this
one, and `ssh` is `far.py`; the commands, the program and all that they print are real.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import network
from .ray_machines import ray_machines

PROGRAM = """\
import keras
import numpy as np

import replicax as rx

strategy = rx.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x = np.random.default_rng(0).normal(size=(640, 16))
model.fit(x, x[:, :1], batch_size=32, epochs=2, verbose=2)
"""
LONGER = PROGRAM.replace("epochs=2", "epochs=100_000")
SECRET = 32 * "5a"
SHOWN = 160  # characters of a line


def main():
    if why := network.why_not():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder, "work")
        work.mkdir()
        (work / "train.py").write_text(PROGRAM)
        source = str(Path(__file__).parents[2] / "src")
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": f"{Path(__file__).parents[1] / 'lean'}{os.pathsep}{source}",
            "KERAS_BACKEND": "jax",
            "RX_COMPILATION_CACHE": "off",
            "RX_WATCHDOG_SECONDS": "5",
        }
        with network.machines(Path(folder), ("host0", "host1"), environment) as net:
            by_ssh(net, work, environment)
            by_hand(net, work)
            (work / "train.py").write_text(LONGER)
            by_hand(net, work, vanishing="host1")
    with tempfile.TemporaryDirectory() as folder:
        by_ray(Path(folder), environment["PYTHONPATH"])


def by_ssh(net, work, environment):
    print("$ replicax run --hosts host0,host1 train.py")
    own = ["--hosts", "host0,host1", "--ssh", str(net.ssh), "train.py"]
    ran = subprocess.run(
        [sys.executable, "-m", "replicax.launch", "run", *own],
        cwd=work,
        env={**environment, "PWD": str(work)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    show(ran.stdout, work)


def by_hand(net, work, vanishing=""):
    workers = [f"{name}:2222" for name in net.addresses]
    started = {}
    for index, name in enumerate(net.addresses):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        words = ["env", f"TF_CONFIG={json.dumps(config)}", f"RX_CLUSTER_SECRET={SECRET}"]
        started[name] = net.popen(name, *words, sys.executable, "train.py", folder=work)
    if vanishing:
        time.sleep(8)  # they train by then
        net.vanish(vanishing)
    for name, process in started.items():
        said, _ = process.communicate()
        remark = f"  # the network of {vanishing} fails" if vanishing else ""
        print(f"\n{name}$ python train.py{remark}")
        show(said, work)
        print(f"{name}$ echo $?\n{process.returncode}")


def by_ray(folder, path):
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text(PROGRAM)
    served = PROGRAM.replace("MultiWorkerMirroredStrategy", "ParameterServerStrategy")
    (work / "servers.py").write_text(served)
    with ray_machines(folder, path) as net:
        for words in ("--workers 3 train.py", "--workers 2 --ps 1 servers.py"):
            command = ["replicax", "run", "--ray", "auto", *words.split()]
            said, _ = net.popen("host0", *command, folder=work).communicate()
            print(f"\nhost0$ {' '.join(command)}")
            show(said, work)


def show(said, work):
    lines = [line.replace(f"{work}/", "") for line in said.splitlines()]
    epochs = [number for number, line in enumerate(lines) if "Epoch" in line or "loss:" in line]
    for number, line in enumerate(lines):
        if number not in epochs[12:]:
            print(line[:SHOWN] + ("…" if len(line) > SHOWN else ""))
        elif number == epochs[-1]:
            print("…")


if __name__ == "__main__":
    main()
