"""A strategy is there before its processes are: what is done meanwhile, and how that can end."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from replicax.launch._ports import free_ports

from helpers import completed, wait_until
from processes import running_with

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no forks"),
]

BEGIN = """
import os, sys
import replicax as rx
import keras, numpy as np

def stop(sig):  # lets what the cluster's process is about to do wait for us
    os.kill(strategy.coordination.engine.cluster.session, sig)
"""

MEANWHILE = """
import signal
strategy = rx.ParameterServerStrategy(num_workers=2, num_ps=2)
stop(signal.SIGSTOP)
given = np.array([1.0, 2.0], "float32")
with strategy.scope():
    a, b = keras.Variable(given), keras.Variable([[3.0]])
a.assign(2 * given); given[:] = 99
assert strategy.num_replicas_in_sync == 1
assert ["task:0" in a.device, "task:1" in b.device] == [True, True]
assert a.numpy().tolist() == [2.0, 4.0] and b.numpy().tolist() == [[3.0]]
coordinator = rx.coordinator.ClusterCoordinator(strategy)
optimizer = keras.optimizers.SGD(0.5, momentum=0.9)

@rx.function
def step(x):
    loss, grads = rx.value_and_grad(lambda: keras.ops.sum(a * x) + keras.ops.sum(b), [a, b])()
    optimizer.apply(grads, [a, b])
    return loss

later = coordinator.schedule(step, args=(np.float32([1, 10]),))  # traced without them
stop(signal.SIGCONT)
print("loss", float(later.fetch()), flush=True)
coordinator.join()
print(a.numpy().tolist(), b.numpy().tolist(), int(optimizer.iterations.value), flush=True)
a.assign_add([1.0, 1.0]); b.assign([[7.0]])
print(a.numpy().tolist(), b.numpy().tolist(), sum(coordinator.staleness().values()))
strategy.close()
"""

ENDS = """
strategy = rx.ParameterServerStrategy(num_workers=2, num_ps=1)
with strategy.scope():
    v = keras.Variable(1.0)
HOW
"""

STANDS_STILL = """
import signal
from replicax._ps.hosts.contact import ask_about
strategy = rx.ParameterServerStrategy(num_workers=1, num_ps=2)
with strategy.scope():
    v = keras.Variable(np.arange(4.0))
cluster = strategy.coordination.engine.cluster
v.assign_add(np.ones(4))
member = cluster.member("server", 0)
os.kill(ask_about(member.addresses[0], cluster.secret, timeout=10).process, signal.SIGSTOP)
strategy.close()
print("closed")
"""

NEVER_CLOSES = """
if "chief" not in os.environ["TF_CONFIG"].rpartition("task")[2]:
    rx.Server(rx.cluster_resolver.TFConfigClusterResolver()).join()
strategy = rx.ParameterServerStrategy(snapshot_seconds=0.2)
with strategy.scope():
    v = keras.Variable([1.0, 2.0])
v.assign_add([1.0, 1.0])
print(v.numpy().tolist())
"""

FAILS = """
sys.path.insert(0, sys.argv[1])  # members find what this program finds: a module that is broken
strategy = rx.ParameterServerStrategy(num_workers=2, num_ps=1)
with strategy.scope():
    v = keras.Variable(1.0)
coordinator = rx.coordinator.ClusterCoordinator(strategy)
for use in (
    lambda: (coordinator.schedule(rx.function(lambda: v + 1.0)), coordinator.join()),
    lambda: v.assign_add(1.0),
    lambda: coordinator.schedule(rx.function(lambda: v + 2.0)).fetch(),
):
    try:
        use()
    except rx.errors.UnavailableError as error:
        print("told" if "it is broken on purpose" in str(error) else error, flush=True)
strategy.close()
try:
    v.assign(3.0); v.assign_add(1.0)
except rx.errors.UnavailableError:
    print("closed")
"""


def run(code, tmp_path, *arguments, code_expected=0):
    """What a program prints that leaves nothing behind."""
    temp = tmp_path / "temp"
    temp.mkdir()
    mark = f"DIR={tmp_path}"
    environ = {**os.environ, "DIR": str(tmp_path), "TMPDIR": str(temp)}
    shared = set(os.listdir("/dev/shm"))
    ran = completed([sys.executable, "-c", BEGIN + code, *arguments], env=environ, seconds=250)
    assert ran.returncode == code_expected, ran.stderr
    wait_until(lambda: not running_with(mark))
    assert not list(temp.iterdir())
    assert {name for name in os.listdir("/dev/shm") if "rx" in name} <= shared
    return ran.stdout.splitlines()


@pytest.mark.core
def test_a_program_goes_on_while_its_processes_start(tmp_path):
    # loss 2 * 1 + 4 * 10 + 3; then each minus half of its gradient
    assert run(MEANWHILE, tmp_path) == [
        "loss 45.0",
        "[1.5, -1.0] [[2.5]] 1",
        "[2.5, 0.0] [[7.0]] 2",
    ]


@pytest.mark.parametrize("how", ["strategy.close()", "pass", "del strategy, v"])
def test_a_program_may_end_before_its_processes_are_there(how, tmp_path):
    assert run(ENDS.replace("HOW", how), tmp_path) == []


def test_a_program_ends_although_a_server_stands_still(tmp_path, monkeypatch):
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", "3")
    assert run(STANDS_STILL, tmp_path) == ["closed"]


def test_a_given_server_outlives_a_program_that_does_not_close(tmp_path):
    code, said = outlive(tmp_path)
    assert code == 128 + signal.SIGTERM
    assert len(said) == 1 and "strategy.close()" in said[0]
    assert not list(tmp_path.iterdir())


def outlive(folder):
    """Let a server outlive its program, and end it: with which code, and what it has said."""
    with free_ports(3) as ports:
        chief, worker, ps = ([f"localhost:{port}"] for port in ports)
    spec = {"chief": chief, "worker": worker, "ps": ps}
    server = start_task(spec, "ps", folder)
    try:
        program = start_task(spec, "chief", folder)
        assert program.communicate(timeout=200)[0] == "[2.0, 3.0]\n"
        assert program.returncode == 0
        said = [server.stderr.readline()]
        assert list(folder.glob("replicax-snapshots-*"))  # for another coordinator, who may come
        time.sleep(1)  # time for some snapshots
        server.terminate()
        said += server.communicate(timeout=60)[1].splitlines()
    finally:
        server.kill()
        server.communicate()
    return server.returncode, said


def start_task(spec, job, folder):
    config = {"cluster": spec, "task": {"type": job, "index": 0}}
    environ = {
        **os.environ,
        "TF_CONFIG": json.dumps(config),
        "TMPDIR": str(folder),
        "RX_CLUSTER_SECRET": "thirty-two bytes, as all others.",
    }
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", BEGIN + NEVER_CLOSES]
    return subprocess.Popen(command, env=environ, stdout=pipe, stderr=pipe, text=True)


def test_that_processes_do_not_start_is_told_whenever_they_are_needed(tmp_path):
    (tmp_path / "broken").mkdir()
    broken = tmp_path / "broken" / "cloudpickle.py"
    broken.write_text("raise RuntimeError('it is broken on purpose')")
    assert run(FAILS, tmp_path, str(broken.parent)) == ["told", "told", "told", "closed"]
