"""What is filled in where nothing is asked for, and the command that asks for the same again."""

from __future__ import annotations

import shlex

import pytest

from replicax import report
from replicax.launch import _cli
from replicax.report import Settings


def test_the_public_names_are_loaded_on_first_use():
    assert [callable(getattr(report, name)) for name in dir(report)] == [True] * 9
    with pytest.raises(AttributeError, match="has no"):
        report.compere  # noqa: B018


def test_workers_add_their_strategies():
    settings = Settings(strategies=("mirrored",), workers=3)
    names = ("one_device", "mirrored", "multi_worker", "parameter_server")
    assert (settings.strategies, settings.workers) == (names, 3)


def test_a_strategy_of_workers_that_is_named_comes_alone_with_two_of_them():
    settings = Settings(strategies=("one_device", "multi_worker"))
    assert (settings.strategies, settings.workers) == (("one_device", "multi_worker"), 2)


def test_without_either_there_are_no_workers():
    assert Settings().workers is None


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(model="mlp", workers=2, replicas=4, examples=100, seed=7),
        Settings(dataset="cifar10", model="resnet20", repeats=1),
    ],
)
def test_the_command_gives_the_same_settings(settings):
    program, *arguments = shlex.split(settings.command())
    request = vars(_cli.build_parser().parse_args(arguments))
    del request["command"], request["output"], request["open"]
    assert program == "replicax"
    assert Settings(**request) == settings
