"""The arguments of `replicax`: what is accepted, what is said about the rest, how fast help is."""

import subprocess
import sys

import pytest

from replicax.launch import _cli, _environments, _tool_arguments


def refusal(arguments, capsys):
    """Return what `replicax` says about bad arguments, after checking that it exits with 2."""
    with pytest.raises(SystemExit) as exit_:
        _cli.main(arguments)
    assert exit_.value.code == 2
    return " ".join(capsys.readouterr().err.split())


def test_compare_starts_the_report_with_all_options_as_json(started):
    _cli.main(["compare", "--model", "mlp", "--strategies", "default, mirrored", "--replicas=4"])
    ((name, options, _),) = started
    assert name == "compare"
    assert options == {
        "dataset": "digits",
        "model": "mlp",
        "workers": None,
        "open": False,
        "examples": None,
        "epochs": 8,
        "batch_size": 64,
        "seed": 0,
        "strategies": ["default", "mirrored"],
        "replicas": 4,
        "repeats": 5,
        "output": "report",
    }


def test_compare_with_workers_and_a_browser(started):
    _cli.main(["compare", "--workers", "3", "--open"])
    ((_, request, _),) = started
    assert (request["model"], request["workers"], request["open"]) == ("cnn", 3, True)


def test_devices_starts_the_report(started):
    assert _cli.main(["devices", "--json"]) == 3  # the exit code of the child
    ((name, options, _),) = started
    assert (name, options) == ("devices", {"replicas": None, "json": True})


def test_defaults_and_choices_are_those_of_the_report():
    from replicax._tools import strategies
    from replicax._tools.compare import settings, subjects
    from replicax.report import Settings

    options = vars(_cli.build_parser().parse_args(["compare"]))
    del options["command"], options["output"], options["open"]
    assert Settings(**options) == Settings()
    assert (*settings.LOCAL, *settings.OF_WORKERS) == _tool_arguments.STRATEGIES
    assert set(_tool_arguments.DATASETS) == set(subjects._LOADERS)
    assert set(_tool_arguments.MODELS) == set(subjects._RECIPES)
    assert set(_tool_arguments.VERIFIED) <= set(strategies._MAKERS)


def test_the_child_gets_as_many_cpu_devices_as_replicas():
    environment = _environments.of_compare({"HOME": "/home/x"}, replicas=5)
    assert environment["JAX_NUM_CPU_DEVICES"] == "5"
    assert environment["KERAS_BACKEND"] == "jax"
    assert environment["HOME"] == "/home/x"


def test_the_child_gets_two_cpu_devices_if_nothing_is_said():
    assert _environments.of_compare({}, replicas=None)["JAX_NUM_CPU_DEVICES"] == "2"


@pytest.mark.parametrize(
    ("replicas", "cores", "threads"), [(None, 2, 8), (2, 2, 8), (8, 2, 16), (2, 64, 64)]
)
def test_the_thread_pool_has_room_for_replicas_and_cores(monkeypatch, replicas, cores, threads):
    monkeypatch.setattr(_environments, "cores", lambda: cores)
    assert _environments.of_compare({"NPROC": "1"}, replicas=replicas)["NPROC"] == str(threads)


@pytest.mark.parametrize("option", ["--epochs", "--batch-size", "--replicas", "--repeats"])
@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", "²", ""])
def test_what_is_counted_must_be_a_positive_number(option, value, capsys):
    said = refusal(["compare", f"{option}={value}"], capsys)
    assert f"argument {option}: must be a whole number of at least 1, got {value!r}" in said


@pytest.mark.parametrize("value", ["-1", "4294967296", "x"])
def test_a_seed_must_be_one_that_numpy_takes(value, capsys):
    said = refusal(["compare", f"--seed={value}"], capsys)
    assert f"must be a whole number from 0 to 4294967295, got {value!r}" in said


def test_an_unknown_strategy_is_named(capsys):
    said = refusal(["compare", "--strategies", "mirrored,mirored"], capsys)
    assert "Did you mean 'mirrored'?" in said
    assert "central_storage, multi_worker, parameter_server" in said


def test_a_strategy_can_be_named_once(capsys):
    said = refusal(["compare", "--strategies", "mirrored,mirrored"], capsys)
    assert "must name each strategy once, got 'mirrored,mirrored'" in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train"], "no command 'train'"),
        (["runn"], "Did you mean 'run'?"),
        (["run", "--worker", "2", "a.py"], "Did you mean '--workers'?"),
        (["doctor", "--replica", "2"], "Did you mean '--replicas'?"),
        (["k8s", "a.py", "--image", "b"], "--image is required"),
        (["compare", "--dataset", "mnist"], "argument --dataset: invalid choice: 'mnist'"),
        (["compare", "--model", "vgg"], "argument --model: invalid choice: 'vgg'"),
        (["compare", "--epoch", "3"], "unrecognized arguments: --epoch"),
        (["devices", "--epochs", "3"], "unrecognized arguments: --epochs"),
        (["run", "--nproc-per-node=2", "x.py"], "`replicax run --help` lists the options"),
    ],
)
def test_other_bad_arguments_are_refused(arguments, complaint, capsys):
    assert complaint in refusal(arguments, capsys)


def test_an_error_of_a_command_shows_its_usage(capsys):
    assert refusal(["doctor", "--foo"], capsys).startswith("usage: replicax doctor")


def test_without_arguments_the_commands_are_listed(capsys):
    assert _cli.main([]) == 0
    said = capsys.readouterr().out
    assert all(f"\n    {command} " in said for command in ("compare", "run", "verify"))


@pytest.mark.parametrize("program", [["train.py"], ["-m", "package.train"]])
def test_the_right_order_of_options_and_program_is_named(monkeypatch, capsys, program):
    monkeypatch.setattr(_cli, "_run", lambda request, typed: len(request["args"]))
    assert _cli.main(["run", *program, "--workers", "2"]) == 2  # the program gets both
    assert f"`replicax run --workers … {' '.join(program)}`" in capsys.readouterr().err


@pytest.mark.parametrize("behind", [["--gpus", "2"], ["--workers=3", "--epochs", "2"]])
def test_an_option_behind_the_program_is_noticed(behind, capsys):
    assert _cli.main(["k8s", "--image", "a", "train.py", *behind]) == 0
    told = capsys.readouterr()
    assert behind[0].partition("=")[0] in told.err
    assert "--epochs" not in told.err
    assert behind[0] in told.out  # the program gets it


@pytest.mark.parametrize("command", ["compare", "devices", "profile", "doctor"])
def test_help_shows_examples(command, capsys):
    with pytest.raises(SystemExit) as exit_:
        _cli.main([command, "--help"])
    assert exit_.value.code == 0
    assert f"examples:\n  replicax {command}" in capsys.readouterr().out


def test_version_is_that_of_the_package(monkeypatch, capsys):
    monkeypatch.setattr(_cli.metadata, "version", lambda package: f"9.{len(package)}")
    with pytest.raises(SystemExit) as exit_:
        _cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == "replicax 9.8\n"


def test_version_without_an_installed_package_is_no_error(monkeypatch, capsys):
    def missing(package):
        raise _cli.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(_cli.metadata, "version", missing)
    with pytest.raises(SystemExit):
        _cli.main(["--version"])
    assert capsys.readouterr().out == "replicax (not installed)\n"


def test_the_package_is_the_command():
    command = [sys.executable, "-m", "replicax"]
    asked = [[*command, "--version"], [*command, "run", "--workers", "0", "a.py"]]
    said = [subprocess.run(one, capture_output=True, text=True, timeout=200) for one in asked]
    assert [one.returncode for one in said] == [0, 2]
    assert said[0].stdout.startswith("replicax ")
    assert said[1].stderr.startswith("usage: replicax run ")


@pytest.mark.parametrize("command", ["verify", "plan", "profile", "doctor", "migrate"])
def test_a_file_that_is_not_there_is_named_with_the_one_that_is_meant(
    command, capsys, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    said = refusal([command, "trian.py"], capsys)
    assert "'trian.py'" in said and "Did you mean 'train.py'?" in said


def test_a_folder_is_no_program(tmp_path, capsys):
    assert _cli.main(["run", "--workers", "2", str(tmp_path)]) == 2
    assert str(tmp_path) in capsys.readouterr().err
    (tmp_path / "__main__.py").write_text("print('hello')")
    assert _cli.main(["run", "--workers", "1", str(tmp_path)]) == 0
