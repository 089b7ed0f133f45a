"""`replicax run --ps`: one program as chief, workers and parameter servers, which may fail."""

from __future__ import annotations

import json
import re
import sys
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from replicax._processes.child import ProcessPlan
from replicax._processes.output import Terminal
from replicax._processes.rules import Grace, Rules, Signals
from replicax._processes.supervisor import run_attempts
from replicax.cluster_resolver import ClusterSpec, Task
from replicax.launch import _run
from replicax.launch._plan import Program, Surroundings, plan
from replicax.launch._ray import FarProcess

from processes import outcome

TRAIN = Program("train.py")
SPEC = ClusterSpec({"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]})
NAMES = ["chief 0", "worker 0", "worker 1", "ps 0"]

# What each of the processes does; `me` is "chief 0", "worker 1" and so on.
ANY = f"""
import json, os, signal, sys, time
sys.path[:0] = {sys.path!r}
task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{{task['type']}} {{task['index']}}"
"""
SERVE = """
from replicax._ps.hosts import given_cluster
given_cluster.START_MEMBER = "tiny_member:start_member"
given_cluster.serve_this_task_if_member()
"""
CHIEF = """
import replicax as rx
from replicax._ps.hosts.given_cluster import GivenCluster
import tiny_member
cluster = GivenCluster.described(rx.cluster_resolver.TFConfigClusterResolver())
members = [("worker", 0), ("worker", 1), ("server", 0)]
process = {}
for who in members:
    process[who] = tiny_member.about(cluster.member(*who, timeout=60), cluster.secret)["process"]
"""


def plans(**options):
    surroundings = Surroundings(**{"environ": {}, **options})
    return plan(TRAIN, SPEC, SPEC.tasks, surroundings=surroundings, restart=2)


def environments(**options):
    return {str(planned.task): planned.env for planned in plans(**options)}


def test_every_task_runs_the_program_the_chief_first():
    assert [str(planned.task) for planned in plans()] == NAMES
    assert {planned.argv for planned in plans()} == {(sys.executable, "train.py")}


def test_every_task_finds_the_cluster_and_its_place():
    for name, env in environments().items():
        config = json.loads(env["TF_CONFIG"])
        assert config["cluster"] == SPEC.as_dict()
        assert f"{config['task']['type']} {config['task']['index']}" == name
        assert env["RX_RESTART"] == "2"


def test_devices_are_for_those_that_compute():
    found = environments(devices_per_worker=2)
    assert [name for name, env in found.items() if "JAX_NUM_CPU_DEVICES" in env] == NAMES[:3]


def test_members_keep_their_memory_unless_somebody_says_otherwise():
    found = environments()
    assert [name for name, env in found.items() if "GLIBC_TUNABLES" in env] == NAMES[1:]
    stock = environments(environ={"RX_CPU_TUNING": "0"})
    assert not any("GLIBC_TUNABLES" in env for env in stock.values())
    own = environments(environ={"GLIBC_TUNABLES": "mine"})
    assert {env["GLIBC_TUNABLES"] for env in own.values()} == {"mine"}


def test_without_a_number_there_is_one_worker():
    request = _run.Request("train.py", ps=2)
    with _run.local_cluster(request.program, request.counts, Surroundings({}))(0) as planned:
        assert [str(one.task) for one in planned] == ["chief 0", "worker 0", "ps 0", "ps 1"]


def test_the_secret_of_the_environment_is_taken():
    request = _run.Request("train.py", workers=1, ps=1)
    for options in ({"environ": {"RX_CLUSTER_SECRET": "x"}}, {"environ": {}}):
        with _run.local_cluster(TRAIN, request.counts, Surroundings(**options))(0) as planned:
            (secret,) = {one.env["RX_CLUSTER_SECRET"] for one in planned}
        assert secret == "x" if options["environ"] else len(secret) == 64


def test_members_that_fail_come_back_and_all_end_with_the_chief(launch, script):
    path = script(
        ANY
        + SERVE
        + CHIEF
        + """
os.kill(process["worker", 1], signal.SIGKILL)
os.kill(process["server", 0], signal.SIGTERM)
os.kill(process["worker", 0], signal.SIGSTOP)
cluster.kill("worker", 0)
for who in members:
    member = cluster.member(*who, after=0, timeout=60)
    assert tiny_member.about(member, cluster.secret)["process"] != process[who]
    print(*who, member.incarnation)
cluster.close()
"""
    )
    code, out, err = outcome(launch("--workers", "2", "--ps", "1", path))
    assert (code, sorted(out)) == (
        0,
        ["[chief 0] server 0 1", "[chief 0] worker 0 1", "[chief 0] worker 1 1"],
    )
    told = sorted(line.partition(" (pid ")[0] + line.partition(")")[2] for line in err)
    killed = "has ended: signal 9 (SIGKILL: kill -9, or memory ran out)"
    assert told == [
        "replicax: ps 0 has ended: exit code 143; starting it again, restart 1 of 3",
        f"replicax: worker 0 {killed}; starting it again, restart 1 of 3",
        f"replicax: worker 1 {killed}; starting it again, restart 1 of 3",
    ]


def test_a_member_that_fails_too_often_ends_all(launch, script):
    # The others run until they are ended.
    fails = "if me == 'ps 0': print(os.environ['RX_RESTART']); sys.exit(3)\ntime.sleep(600)"
    options = ("--ps", "1", "--max-restarts", "1", "--grace", "0.2")
    code, out, err = outcome(launch(*options, script(ANY + fails)))
    assert code == 3
    assert out[:2] == ["[ps 0] 0", "[ps 0] 1"]
    assert any(re.search(r"ps 0 \(pid \d+\) failed with exit code 3", line) for line in err)


def test_a_chief_that_fails_ends_all_and_all_are_started_again(launch, script):
    path = script(
        ANY
        + """
if me != "chief 0": time.sleep(600)  # until it is ended
print(os.environ["RX_RESTART"])
sys.exit(5 if os.environ["RX_RESTART"] == "0" else 0)
"""
    )
    options = ("--ps", "1", "--max-restarts", "1", "--grace", "0.2")
    code, out, err = outcome(launch(*options, path))
    assert (code, out) == (0, ["[chief 0] 0", "[chief 0] 1"])
    assert re.search(r"chief 0 \(pid \d+\) failed with exit code 5", err[0])
    assert err[-1] == "replicax: starting all workers again, restart 1 of 1"


class ActorDiedError(Exception):
    """In place of Ray's."""


class DeadActor:
    """What Ray gives for an actor whose machine is gone; it counts how often it is started."""

    def __init__(self):
        self.starts = 0
        self.start = self.tell = self.kill = self.listen = self

    def options(self, **_):
        return self

    def remote(self, *arguments):
        if arguments:
            raise ActorDiedError("its node has died.")
        self.starts += 1


def test_a_member_whose_machine_ray_has_lost_is_named_and_not_started_again(capfd, monkeypatch):
    ray: Any = ModuleType("ray")
    ray.exceptions = ray
    ray.ActorDiedError, ray.get = ActorDiedError, lambda value: value
    ray.cluster_resources, ray.available_resources = lambda: {"CPU": 4.0}, lambda: {"CPU": 1.0}
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray)
    actor, sink = DeadActor(), Terminal({})

    @contextmanager
    def cluster(restart):
        env = {"RX_RESTART": str(restart)}
        stays = "import time; time.sleep(600)"  # until the launcher ends it
        far = partial(FarProcess, actor, "worker 0 on 10.0.0.7", {"CPU": 2})
        yield [
            ProcessPlan(Task("chief", 0), (sys.executable, "-S", "-c", stays), env),
            ProcessPlan(Task("worker", 0), (), env, start=far),
        ]

    rules = Rules(Grace(0.2, 0.2), leader=Task("chief", 0), revivals=3)
    options = {"sink": sink, "signals": Signals(), "rules": rules}
    ended = run_attempts(cluster, max_restarts=1, **options)
    sink.flush()
    assert ended.failure.returncode == 255
    assert actor.starts == 2  # one in each attempt
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("[worker 0] ")]
    assert len(told) == 2
    assert all("worker 0 on 10.0.0.7" in line and "1 of 4 CPU" in line for line in told)
    assert all(line.endswith(".") and ".." not in line for line in told)
