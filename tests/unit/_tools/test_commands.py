"""What the child processes of commands do with their arguments and errors."""

import json

import pytest

import replicax as rx
from replicax._tools.commands import WORK, main


@pytest.fixture
def run(monkeypatch):
    """Run `plan` with a function, or an error, in place of its work."""

    def run(outcome, **options):
        def work(given):
            if isinstance(outcome, Exception):
                raise outcome
            return outcome(given)

        monkeypatch.setitem(WORK, "plan", work)
        return main(["plan", json.dumps(options)])

    return run


def test_the_options_are_those_of_the_command_line(run):
    assert run(lambda options: options["code"], code=5) == 5


@pytest.mark.parametrize("arguments", [[], ["plan"], ["plan", "{}", "{}"], ["train", "{}"]])
def test_other_calls_are_told_the_usage(arguments, capsys):
    assert main(arguments) == 2
    assert "see replicax --help" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [("UsageError", 2), ("CheckpointError", 1)])
def test_errors_of_ours_are_a_line_and_an_exit_code(run, kind, code, capsys):
    assert run(getattr(rx.errors, kind)("No.")) == code
    assert capsys.readouterr().err == "replicax plan: error: No.\n"


def test_other_errors_go_on(run):
    with pytest.raises(ZeroDivisionError):
        run(lambda options: 1 // 0)


def test_the_traceback_of_a_script_begins_in_the_script(run, tmp_path, capsys):
    from replicax._tools.script import run_program

    script = tmp_path / "train.py"
    script.write_text("def train():\n    1 // 0\n\ntrain()\n")
    assert run(lambda options: run_program(str(script))) == 2
    _, first, *_, last = capsys.readouterr().err.splitlines()
    assert first == f'  File "{script}", line 4, in <module>'
    assert last.startswith("ZeroDivisionError")
    script.write_text("import replicax as rx\nrx.Variable('text')\n")
    assert run(lambda options: run_program(str(script))) == 2
    assert capsys.readouterr().err.startswith(f"replicax plan: error: {script}:2: ")


@pytest.mark.parametrize("name", ["json", "markdown", "plot"])
def test_a_folder_that_is_not_there_is_found_before_the_work(run, name, capsys):
    assert run(AssertionError("worked first"), **{name: "/nowhere/file"}) == 2
    assert "/nowhere/file" in capsys.readouterr().err
