"""The arguments of `replicax profile` and `replicax doctor`, and the processes they go to."""

import pytest

from replicax.launch import _cli

pytestmark = pytest.mark.usefixtures("programs")


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
