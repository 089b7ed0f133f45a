"""The arguments of `replicax verify`, `plan`, `profile` and `doctor`, and where they go to."""

import pytest

from replicax.launch import _cli
from replicax.launch._environments import of_plan

pytestmark = pytest.mark.usefixtures("programs")


def test_a_child_with_virtual_devices_verifies(started):
    typed = ["verify", "train.py", "--replicas", "4", "--strategies", "zero1", "--seed", "0"]
    typed += ["--", "--steps", "9"]
    assert _cli.main(typed) == 3
    ((name, options, environment),) = started
    assert (name, options["target"]) == ("verify", "train.py")
    assert options["args"] == ["--steps", "9"]
    assert (options["strategies"], options["steps"], options["repeat"]) == (["zero1"], 8, True)
    assert options["seed"] == 0
    assert environment["JAX_NUM_CPU_DEVICES"] == "4"


def test_an_unknown_strategy_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        _cli.main(["verify", "train.py", "--strategies", "mirored"])
    said = " ".join(capsys.readouterr().err.split())
    assert "no strategy 'mirored'" in said and "central_storage, zero1" in said


def test_the_example_of_the_issue(started):
    typed = "plan train.py --tpu v5e:4x4 --tpu v5p:2x2x2 --strategies mirrored,zero1 --batch 1024"
    assert _cli.main(typed.split()) == 3
    ((name, options, environment),) = started
    assert (name, options["target"]) == ("plan", "train.py")
    assert options["topologies"] == ["v5e:4x4", "v5p:2x2x2"]
    assert options["strategies"] == ["mirrored", "zero1"]
    assert (options["batch"], options["bisect"], options["args"]) == (1024, True, [])
    assert (environment["JAX_PLATFORMS"], environment["KERAS_BACKEND"]) == ("cpu", "jax")


def test_arguments_of_the_script_stand_behind_two_dashes(started):
    _cli.main(["plan", "train.py", "--no-bisect", "--", "--batch", "7", "--", "x"])
    ((_, options, _),) = started
    assert options["args"] == ["--batch", "7", "--", "x"]
    assert (options["batch"], options["bisect"]) == (None, False)
    assert options["topologies"] == ["v5e:2x4"]


def test_numbers_of_chips(started, capsys):
    _cli.main(["plan", "train.py", "--scale", "1, 8,4096"])
    ((_, options, _),) = started
    assert options["scale"] == [1, 8, 4096]
    with pytest.raises(SystemExit):
        _cli.main(["plan", "train.py", "--scale", "1,,8"])
    assert "must be a whole number of at least 1, got ''" in capsys.readouterr().err


def test_a_cpu_gets_its_devices(started):
    _cli.main(["plan", "model.keras", "--cpu", "12"])
    ((_, options, environment),) = started
    assert options["topologies"] == ["cpu:12"]
    assert (environment["JAX_NUM_CPU_DEVICES"], environment["NPROC"]) == ("12", "24")


def test_devices_that_were_asked_for_stay():
    environ = {"JAX_NUM_CPU_DEVICES": "6", "PATH": "/bin"}
    found = of_plan(environ, cpu=2, gpu=None)
    assert (found["JAX_NUM_CPU_DEVICES"], found["PATH"]) == ("6", "/bin")
    assert of_plan({}, cpu=None, gpu=2)["JAX_PLATFORMS"] == "cuda,cpu"


def test_strategies_are_checked_before_anything_starts(started, capsys):
    with pytest.raises(SystemExit) as exit_:
        _cli.main(["plan", "train.py", "--strategies", "mirrored,zero2"])
    assert exit_.value.code == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "no strategy 'zero2'" in said and "model_parallel:M" in said
    assert started == []


def test_a_profile(started):
    typed = "profile train.py --replicas 12 --steps 7 --warm-up 2 --json p.json -- --lr 1"
    assert _cli.main(typed.split()) == 3
    ((name, options, environment),) = started
    assert name == "profile"
    assert options == {
        "script": "train.py",
        "args": ["--lr", "1"],
        "replicas": 12,
        "steps": 7,
        "warm_up": 2,
        "traced": 5,
        "output": "profile",
        "json": "p.json",
        "markdown": None,
        "scale": 1.0,
        "of_workers": False,
        "log": None,
    }
    assert (environment["JAX_NUM_CPU_DEVICES"], environment["NPROC"]) == ("12", "24")
    assert environment["KERAS_BACKEND"] == "jax"


@pytest.mark.parametrize("command", ["profile", "doctor", "verify", "plan"])
def test_a_folder_is_no_script(command, started, capsys):
    with pytest.raises(SystemExit, match="2"):
        _cli.main([command, "."])
    assert "folder" in capsys.readouterr().err
    assert not started


def test_a_profile_of_the_script_as_it_is(started, monkeypatch):
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "5")
    _cli.main(["profile", "train.py", "--no-trace"])
    ((_, options, environment),) = started
    assert (options["replicas"], options["traced"]) == (None, 0)
    assert environment["JAX_NUM_CPU_DEVICES"] == "5"


def test_the_doctor(started, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    _cli.main(["doctor"])
    _cli.main(["doctor", "train.py", "--replicas", "4,1,2,2", "--", "a"])
    (name, options, environment), (_, scaled, _) = started
    assert name == "doctor"
    assert (options["script"], options["replicas"]) == (None, None)
    assert environment["KERAS_BACKEND"] == "torch"  # it says what is wrong with that
    assert (scaled["script"], scaled["replicas"], scaled["args"]) == (
        "train.py",
        [4, 1, 2, 2],
        ["a"],
    )
