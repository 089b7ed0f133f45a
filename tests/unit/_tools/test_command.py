"""What the child processes of commands do with their arguments and errors."""

from __future__ import annotations

import pytest

import replicax as rx
from replicax._tools._command import answer


def test_the_options_are_those_of_the_command_line():
    assert answer("plan", lambda options: options["code"], ['{"code": 5}']) == 5


@pytest.mark.parametrize("arguments", [[], ["{}", "{}"]])
def test_there_is_one_argument(arguments, capsys):
    assert answer("plan", lambda options: 0, arguments) == 2
    usage = "usage: python -m replicax._tools.plan OPTIONS; see replicax plan --help\n"
    assert capsys.readouterr().err == usage


@pytest.mark.parametrize(("kind", "code"), [("UsageError", 2), ("CheckpointError", 1)])
def test_errors_of_ours_are_a_line_and_an_exit_code(kind, code, capsys):
    def work(options):
        raise getattr(rx.errors, kind)("No.")

    assert answer("doctor", work, ["{}"]) == code
    assert capsys.readouterr().err == "replicax doctor: error: No.\n"


def test_other_errors_go_on():
    with pytest.raises(ZeroDivisionError):
        answer("doctor", lambda options: 1 // 0, ["{}"])
