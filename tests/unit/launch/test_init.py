"""`replicax init`: what it writes runs, it asks little, and it changes no file."""

import builtins
import os
import shlex
import subprocess
import sys

import nbclient
import nbformat
import pytest

from replicax.launch import _cli

from helpers import completed


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def typed(monkeypatch):
    """Answers that somebody types; returns the questions."""
    answers, questions = [], []

    def answer(question):
        questions.append(question)
        return answers.pop(0)

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(builtins, "input", answer)
    return answers, questions


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker", "tpu", "parameter_server"])
@pytest.mark.timeout(200)
def test_a_script_trains_and_saves(strategy, folder, capsys):
    assert _cli.main(["init", "--strategy", strategy, "--yes"]) == 0
    start = shlex.split(capsys.readouterr().out.partition("start it: ")[2])
    module = {"python": [], "replicax": ["-m", "replicax"]}[start[0]]
    environment = {**os.environ, "RX_TPU_FALLBACK": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = completed([sys.executable, *module, *start[1:]], env=environment, seconds=180)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "val_loss" in done.stdout
    assert (folder / "model.keras").exists()


@pytest.mark.timeout(200)
def test_a_notebook_trains(folder):
    assert _cli.main(["init", "notebook", "--yes", "--output", "first.ipynb"]) == 0
    book = nbformat.read(folder / "first.ipynb", as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=180, kernel_name="python3").execute()
    assert (folder / "model.keras").exists()


def test_a_job_is_what_its_own_command_writes(folder, capsys):
    assert _cli.main(["init", "slurm", "--workers", "3", "--yes"]) == 0
    assert "sbatch train.sbatch" in capsys.readouterr().out
    (folder / "train.py").touch()
    assert _cli.main(["slurm", "--nodes", "3", "train.py"]) == 0
    assert (folder / "train.sbatch").read_text() == capsys.readouterr().out
    subprocess.run(["bash", "-n", "train.sbatch"], check=True)


def test_a_manifest_is_for_its_owner(folder):
    request = ["init", "k8s", "--image", "registry/train", "--output", "job.yaml", "--yes"]
    assert _cli.main(request) == 0
    assert "JobSet" in (folder / "job.yaml").read_text()
    assert (folder / "job.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("answers", "written"),
    [
        (["", "", ""], "train.py"),
        (["notebook", "tpu", "a.ipynb"], "a.ipynb"),
        (["slurm", "b.py", "4", ""], "train.sbatch"),
        (["k8s", "", "", "registry/train"], "train.yaml"),
    ],
)
def test_it_asks_four_questions_at_most(answers, written, folder, typed):
    typed[0].extend(answers)
    assert _cli.main(["init"]) == 0
    assert len(typed[1]) == len(answers) <= 4
    assert os.listdir(folder) == [written]


def test_a_wrong_answer_is_asked_again(folder, typed, capsys):
    typed[0].extend(["scipt", "script", "mirrored", ""])
    assert _cli.main(["init"]) == 0
    assert "Did you mean 'script'" in capsys.readouterr().out
    assert (folder / "train.py").exists()


def test_what_options_tell_is_not_asked(typed):
    assert _cli.main(["init", "script", "--strategy", "tpu", "--output", "a.py"]) == 0
    assert typed[1] == []


def test_a_file_that_exists_stays(folder, capsys):
    (folder / "train.py").write_text("mine")
    assert _cli.main(["init", "--yes"]) == 2
    assert "--output" in capsys.readouterr().err
    assert (folder / "train.py").read_text() == "mine"


def test_end_of_input_writes_nothing(folder, monkeypatch, typed):
    def end(question):
        raise EOFError

    monkeypatch.setattr(builtins, "input", end)
    assert _cli.main(["init"]) == 130
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (["k8s"], "--image"),
        (["script", "--workers", "3"], "--workers"),
        (["slurm", "--strategy", "tpu"], "--strategy"),
        (["--output", "missing/train.py"], "missing/train.py"),
    ],
)
def test_what_it_refuses(request_, named, folder, capsys):
    assert _cli.main(["init", *request_, "--yes"]) == 2
    assert named in capsys.readouterr().err
    assert os.listdir(folder) == []
