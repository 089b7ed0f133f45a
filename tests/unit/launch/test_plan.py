"""Arguments and environments of workers, of which none is started, and ports that are held."""

import json
import socket
import socketserver
import sys

import pytest

import replicax as rx
from replicax.cluster_resolver import ClusterSpec, Task
from replicax.launch import _inside, _run
from replicax.launch._plan import Program, Surroundings, parse_variable, plan_joining
from replicax.launch._plan import plan as plan_tasks
from replicax.launch._ports import check_ports, free_ports

ADDRESSES = ["a:1", "a:2", "b:1", "b:2"]
TRAIN = Program("train.py", ("--lr", "0.1"))


def plan(program, addresses, here, **options):
    tasks = [Task("worker", index) for index in here]
    return plan_tasks(program, ClusterSpec({"worker": addresses}), tasks, **options)


def environment(**options):
    (planned,) = plan(TRAIN, ["a:1"], [0], surroundings=Surroundings(**options))
    return dict(planned.env)


def test_workers_of_this_machine_are_told_of_all_and_their_own_place():
    plans = plan(TRAIN, ADDRESSES, [2, 3], surroundings=Surroundings({}))
    assert [planned.task for planned in plans] == [Task("worker", 2), Task("worker", 3)]
    assert json.loads(plans[1].env["TF_CONFIG"]) == {
        "cluster": {"worker": ADDRESSES},
        "task": {"type": "worker", "index": 3},
    }


def test_a_script_is_run_by_this_interpreter():
    (planned,) = plan(TRAIN, ["a:1"], [0], surroundings=Surroundings({}))
    assert planned.argv == (sys.executable, "train.py", "--lr", "0.1")


def test_one_of_several_workers_is_run_from_within():
    (planned,) = plan(TRAIN, ["a:1", "b:1"], [0], surroundings=Surroundings({}))
    assert planned.argv == (sys.executable, _inside.__file__, "train.py", "--lr", "0.1")


def test_a_worker_that_joins_is_run_from_within():
    (planned,) = plan_joining(TRAIN, Task("worker", 3), surroundings=Surroundings({}))
    assert planned.argv == TRAIN.argv_inside


def test_a_module_is_run_with_m():
    module = Program("pkg.train", ("-m",), is_module=True)
    assert module.argv == (sys.executable, "-m", "pkg.train", "-m")
    assert module.argv_inside == (sys.executable, _inside.__file__, "-m", "pkg.train", "-m")


def test_the_environment_is_inherited_and_completed():
    env = environment(environ={"HOME": "/home/x", "KERAS_BACKEND": "torch", "TF_CONFIG": "old"})
    assert json.loads(env.pop("TF_CONFIG"))["task"]["index"] == 0
    assert env == {
        "HOME": "/home/x",
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        "RX_PROCESSES_HERE": "1",
        "RX_RESTART": "0",
    }


def test_devices_are_those_asked_for():
    env = environment(environ={"JAX_NUM_CPU_DEVICES": "8"}, devices_per_worker=6, cores=4)
    assert (env["JAX_NUM_CPU_DEVICES"], env["NPROC"]) == ("6", "12")
    assert environment(environ={}, devices_per_worker=2, cores=4)["NPROC"] == "8"


def test_devices_are_left_alone_if_nothing_is_asked_for():
    assert environment(environ={"JAX_NUM_CPU_DEVICES": "3"})["JAX_NUM_CPU_DEVICES"] == "3"


def test_what_is_asked_for_wins():
    extra = {"KERAS_BACKEND": "numpy", "TF_CONFIG": "{}", "NPROC": "1"}
    env = environment(environ={"NPROC": "7"}, devices_per_worker=2, extra=extra)
    assert {name: env[name] for name in extra} == extra


def test_a_worker_that_joins_keeps_the_description_that_it_found():
    environ = {"TF_CONFIG": "theirs", "SLURM_PROCID": "3"}
    (planned,) = plan_joining(TRAIN, Task("worker", 3), surroundings=Surroundings(environ))
    assert planned.env == {
        **environ,
        "KERAS_BACKEND": "jax",
        "PYTHONUNBUFFERED": "1",
        "RX_RESTART": "0",
    }


@pytest.mark.parametrize("text", ["", "B", "=1", "1A=2", "A B=1"])
def test_what_is_no_variable_is_refused(text):
    with pytest.raises(rx.errors.UsageError, match="NAME=VALUE"):
        parse_variable(text, {"A": "1"})


@pytest.mark.parametrize(("text", "variable"), [("A=", ("A", "")), ("A=b=c\nd", ("A", "b=c\nd"))])
def test_a_value_may_be_anything(text, variable):
    assert parse_variable(text, {"A": "1"}) == variable


@pytest.mark.parametrize("name", ["RX_CLUSTER_SECRET", "RX_CLUSTER_SECRET_FILE"])
def test_local_workers_share_a_secret_that_is_not_in_their_arguments(name):
    def secrets(environ):
        with _run.local_cluster(TRAIN, {"worker": 2}, Surroundings(environ))(0) as planned:
            found = {one.env.get("RX_CLUSTER_SECRET") for one in planned}
            assert not any(
                str(value) in argument for value in found for argument in planned[0].argv
            )
        assert len(found) == 1
        return found.pop()

    assert len(secrets({})) == 64
    assert secrets({}) != secrets({})
    assert secrets({name: "what all know"}) in ("what all know", None)  # None: it is in the file


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two, whatever the environment of the test says."""
    monkeypatch.setattr("replicax._core.machine.nvidia.count", lambda: 2)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())


def gpus_of(plans):
    return [planned.env.get("CUDA_VISIBLE_DEVICES") for planned in plans]


@pytest.mark.usefixtures("two_gpus")
def test_workers_get_gpus_of_their_own_of_those_that_the_user_names():
    for extra in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}):
        surroundings = Surroundings({}, extra=extra)
        plans = plan(TRAIN, ["a:1", "a:2"], [0, 1], surroundings=surroundings)
        assert gpus_of(plans) == ["0", "1"]


@pytest.mark.usefixtures("two_gpus")
def test_more_workers_than_gpus_are_refused_unless_they_do_not_join():
    three = ["a:1", "a:2", "a:3"]
    with pytest.raises(rx.errors.ClusterSpecError, match="3 workers cannot share 2 GPUs"):
        plan(TRAIN, three, [0, 1, 2], surroundings=Surroundings({}))
    alone = Surroundings({}, extra={"RX_JOIN": "0"})
    assert gpus_of(plan(TRAIN, three, [0, 1, 2], surroundings=alone)) == ["0", "1", "0"]


@pytest.mark.usefixtures("two_gpus")
def test_with_devices_of_the_cpu_workers_leave_gpus_alone():
    surroundings = Surroundings({"JAX_PLATFORMS": ""}, devices_per_worker=1)
    plans = plan(TRAIN, ["a:1", "a:2", "a:3"], [0, 1, 2], surroundings=surroundings)
    assert gpus_of(plans) == [None] * 3
    assert {planned.env["JAX_PLATFORMS"] for planned in plans} == {"cpu"}


@pytest.mark.usefixtures("two_gpus")
def test_parameter_servers_leave_gpus_to_the_workers_and_the_chief():
    spec = ClusterSpec({"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]})
    plans = plan_tasks(TRAIN, spec, spec.tasks, surroundings=Surroundings({}))
    assert [planned.task.job for planned in plans] == ["chief", "worker", "worker", "ps"]
    assert gpus_of(plans) == ["0", "1", "0", None]
    assert [planned.env.get("JAX_PLATFORMS") for planned in plans] == [None, None, None, "cpu"]


def test_ports_differ():
    with free_ports(50) as first, free_ports(50) as second:
        assert len({*first, *second}) == 100


def test_a_server_can_listen_on_a_held_port_and_be_reached():
    with free_ports(1) as (port,):
        socketserver.TCPServer.allow_reuse_address = True
        try:
            with socketserver.TCPServer(("127.0.0.1", port), socketserver.BaseRequestHandler):
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
        finally:
            socketserver.TCPServer.allow_reuse_address = False


def test_nobody_is_reached_before_a_server_listens():
    with free_ports(1) as (port,), pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_ports_are_given_back():
    with free_ports(1) as (port,):
        pass
    with socket.socket() as other:
        other.bind(("", port))


def test_a_port_on_which_somebody_listens_is_refused():
    with socket.socket() as other:
        other.bind(("", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(rx.errors.ClusterError, match=f"port {port}"):
            check_ports([port])
        with pytest.raises(rx.errors.ClusterError, match="--hosts"):
            check_ports([port])
    check_ports([port])
