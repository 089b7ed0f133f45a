"""`rx.launch.run`: functions and scripts as workers, from Python."""

import os
import pickle
import signal
import sys
import tempfile
import threading
import time

import pytest

import replicax as rx
from replicax import launch
from replicax.launch import _function


def test_results_come_in_the_order_of_workers():
    def rank():
        import json
        import os

        return json.loads(os.environ["TF_CONFIG"])["task"]["index"], os.environ["X"]

    assert rx.launch.run(rank, 3, env={"X": "y"}) == [(0, "y"), (1, "y"), (2, "y")]


def test_arguments_and_closures_travel():
    factor = 3
    assert rx.launch.run(lambda a, b: (a + b) * factor, 1, args=(1, 2)) == [9]


def in_this_module(value):
    return helper(value)


def helper(value):
    return [value]


def test_a_function_of_a_module_that_workers_cannot_import_travels_with_what_it_uses():
    assert rx.launch.run(in_this_module, 1, args=("a",)) == [["a"]]


def test_a_function_can_be_given_by_name():
    assert rx.launch.run("os.path:basename", 2, args=("/a/b",)) == ["b", "b"]


def test_a_named_function_is_found_where_the_caller_finds_it(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("class A:\n    @staticmethod\n    def f(): return 'found'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert rx.launch.run("mine:A.f", 1) == ["found"]


def test_what_travels_lies_in_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert rx.launch.run(lambda: os.listdir(tmp_path), 2) == [[], []]


def test_a_script_can_be_run(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text("import sys; print(sys.argv[1:])")
    assert rx.launch.run(path, 2, args=(1, "b")) == [None, None]
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "[worker 0] ['1', 'b']",
        "[worker 1] ['1', 'b']",
    ]


def test_what_raises_in_a_worker_is_an_error_with_its_last_lines(capsys):
    def fails():
        raise KeyError("the reason")

    with pytest.raises(rx.errors.ProcessFailed, match="failed with exit code 1") as error:
        rx.launch.run(fails, 1)
    assert (error.value.rank, error.value.returncode) == (0, 1)
    assert error.value.tail.endswith("KeyError: 'the reason'")
    assert "[worker 0] KeyError: 'the reason'" in capsys.readouterr().err


def test_all_are_started_again_after_a_failure(capsys):
    def fails_once():
        import os

        if os.environ["RX_RESTART"] == "0":
            raise SystemExit(3)
        return os.environ["RX_RESTART"]

    assert rx.launch.run(fails_once, 2, max_restarts=1) == ["1", "1"]
    assert "restart 1 of 1" in capsys.readouterr().err


def test_time_can_be_limited():
    with pytest.raises(rx.errors.ProcessesTimedOut, match="timeout=0.5"):
        rx.launch.run("time:sleep", 2, args=(600,), timeout=0.5)


def test_with_parameter_servers_the_chief_returns_and_others_are_revived():
    def who(folder):
        import json
        import os
        import time

        task = json.loads(os.environ["TF_CONFIG"])["task"]
        if task["type"] == "chief":
            while not os.path.exists(os.path.join(folder, "revived")):
                time.sleep(0.01)
            return task["type"]
        if task["type"] == "ps" and os.environ["RX_RESTART"] == "0":
            os.kill(os.getpid(), 9)
        if task["type"] == "ps":
            open(os.path.join(folder, "revived"), "w").close()
        return "is not asked for"

    with tempfile.TemporaryDirectory() as folder:
        assert rx.launch.run(who, 2, args=(folder,), ps=1, timeout=100) == ["chief"]


def test_what_workers_print_is_in_files_too(tmp_path):
    rx.launch.run("builtins:print", 2, args=["word"], log_dir=tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "worker-0.log": "word\n",
        "worker-1.log": "word\n",
    }


def test_variables_have_any_name():
    assert rx.launch.run("os:getenv", 1, args=["a.b"], env={"a.b": "c=d"}) == ["c=d"]


def test_a_worker_that_ends_before_it_returns_gives_none():
    assert rx.launch.run("sys:exit", 2) == [None, None]


@pytest.mark.parametrize("option", [{"pack": True}, {"min_workers": 1}, {"gpus_per_worker": 1}])
def test_arguments_of_ray_need_its_address(option):
    with pytest.raises(rx.errors.UsageError, match=f"{next(iter(option))} without ray"):
        rx.launch.run(print, 2, **option)


def test_ctrl_c_ends_the_workers_and_is_raised():
    def interrupts():
        import os
        import signal

        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)  # until it is ended

    with pytest.raises(KeyboardInterrupt):
        rx.launch.run(interrupts, 2)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_it_can_be_called_from_another_thread():
    results = []
    thread = threading.Thread(target=lambda: results.extend(rx.launch.run("os:getppid", 2)))
    thread.start()
    thread.join()
    assert results == [os.getpid()] * 2


def test_a_result_that_plain_pickle_refuses_travels():
    (double,) = rx.launch.run(lambda: lambda x: 2 * x, 1)
    assert double(4) == 8


def test_a_result_that_cannot_be_sent_is_named():
    with pytest.raises(rx.errors.ProcessFailed) as error:
        rx.launch.run("threading:Lock", 1)
    assert "a lock: TypeError" in error.value.tail


def test_a_function_that_cannot_be_sent_is_named():
    lock = threading.Lock()
    with pytest.raises(rx.errors.UsageError, match="pickle"):
        rx.launch.run(lambda: lock, 1)


def test_arguments_that_cannot_be_sent_are_named():
    with pytest.raises(rx.errors.UsageError, match="inside the function"):
        rx.launch.run("math:sqrt", 1, args=(threading.Lock(),))


def test_without_cloudpickle_functions_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(rx.errors.UsageError, match="cloudpickle"):
        rx.launch.run(lambda: None, 1)


def test_without_cloudpickle_names_still_travel(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert rx.launch.run("math:sqrt", 1, args=(4.0,)) == [2.0]


@pytest.mark.parametrize("options", [{"num_workers": 0}, {"num_workers": 1, "max_restarts": -1}])
def test_counts_are_checked(options):
    with pytest.raises(rx.errors.UsageError, match="num_workers|max_restarts"):
        rx.launch.run(print, **options)


def test_a_script_must_be_there():
    with pytest.raises(rx.errors.UsageError, match="'nowhere.py'"):
        rx.launch.run("nowhere.py", 1)


@pytest.mark.parametrize(
    ("text", "name"),
    [("a:b", True), ("a.b:C.d", True), ("a.py", False), ("a/b:c", False), ("C:\\a.py", False)],
)
def test_a_name_is_told_from_a_path(text, name):
    assert _function.is_name(text) is name


def test_other_names_of_the_package_are_private():
    with pytest.raises(AttributeError, match="rx.launch.run"):
        _ = launch.runn


def test_a_failure_can_be_pickled():
    failure = rx.errors.ProcessFailed(1, -9, "a\nb", 4711, "ps")
    copy = pickle.loads(pickle.dumps(failure))
    assert (copy.rank, copy.returncode, copy.tail, str(copy)) == (1, -9, "a\nb", str(failure))


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (7, "worker 1 (pid 4711) failed with exit code 7,"),
        (-9, "signal 9 (SIGKILL: kill -9, or memory ran out)"),
        (-1, "signal 1 (SIGHUP)"),
        (-99, "signal 99 (unknown)"),
    ],
)
def test_a_failure_is_told_in_words(returncode, words):
    assert words in str(rx.errors.ProcessFailed(1, returncode, "", 4711))


def test_a_failure_on_another_machine_names_it_and_counts_as_a_worker():
    text = str(rx.errors.ProcessFailed(1, 7, "a", host="node2"))
    assert text.startswith("node2:worker 1 failed with exit code 7,")
