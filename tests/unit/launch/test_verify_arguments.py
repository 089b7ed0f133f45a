"""The arguments of `replicax verify`, and the child process that they start."""

import pytest

from replicax.launch import _cli

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
