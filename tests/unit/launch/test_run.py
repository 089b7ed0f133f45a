"""`replicax run` as a user starts it: prefixes, exit codes, signals, and no process left."""

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

import replicax as rx
from replicax._processes.rules import Grace, Outcome
from replicax.launch import _run
from replicax.launch._cli import main

from helpers import run_python, wait_until
from processes import is_running, outcome, running_with, wait_for_pids

REPLICAX = [sys.executable, "-m", "replicax.launch"]
HERE = "import os, pathlib; pathlib.Path(os.environ['DIR'], f'pid-{os.getpid()}').touch()\n"
# It runs until it is ended.
SLEEP = "import time; time.sleep(600)\n"


def test_every_worker_runs_the_script_with_its_arguments(launch, script):
    path = script("import sys; print(*sys.argv[1:])")
    code, out, err = outcome(launch("--workers", "2", path, "--workers", "7", "-m", "x y"))
    assert (code, err) == (0, [])
    assert sorted(out) == [f"[worker {index}] --workers 7 -m x y" for index in (0, 1)]


def test_every_worker_finds_the_cluster(launch, script):
    path = script("""
        import json, os
        config = json.loads(os.environ["TF_CONFIG"])
        print(*config["cluster"]["worker"], config["task"]["type"], config["task"]["index"])
        print(*(os.environ[name] for name in ("KERAS_BACKEND", "JAX_NUM_CPU_DEVICES", "X")))
    """)
    options = ("--workers", "3", "--devices-per-worker", "5", "--env", "X=a=b", "--env=Y=")
    _, out, _ = outcome(launch(*options, path))
    lines = sorted(line.split()[2:] for line in out)
    addresses = lines[0][:3]
    assert len({address.removeprefix("127.0.0.1:") for address in addresses}) == 3
    assert lines[:3] == [[*addresses, "worker", str(index)] for index in range(3)]
    assert lines[3:] == [["jax", "5", "a=b"]] * 3


def test_a_module_can_be_run(launch, tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import sys; print(__name__, sys.argv[1:])")
    _, out, _ = outcome(launch("-m", "pkg.train", "--lr", "1", "-m"))
    assert out == ["[worker 0] __main__ ['--lr', '1', '-m']"]


def test_a_double_dash_ends_the_options(launch, script):
    _, out, _ = outcome(
        launch("--workers", "1", "--", script("import sys; print(sys.argv[1:])"), "a")
    )
    assert out == ["[worker 0] ['a']"]


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_the_culprit_is_named_with_its_last_lines(launch, script, ending):
    path = script(f"""
        {HERE}
        import json, signal, sys, time
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            print("what I did last")
            {ending}
        time.sleep(60)
    """)
    code, _, err = outcome(launch("--workers", "3", path))
    (text,) = [line for line in err if line.startswith("replicax: ")]
    how = "exit code 3" if "exit" in ending else "signal 11 (SIGSEGV: native code touched memory"
    assert code == (3 if "exit" in ending else 128 + 11)
    assert f"failed with {how}" in text
    assert "worker 1 (pid " in text
    assert err[err.index(text) + 1] == "    what I did last"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_all_and_is_told(launch, script, tmp_path, signum, code):
    process = launch("--workers", "2", "--max-restarts", "9", script(HERE + SLEEP))
    workers = wait_for_pids(tmp_path, 2)
    process.send_signal(signum)
    returncode, _, err = outcome(process)
    assert returncode == code
    assert err[-1] == f"replicax: {'interrupted' if code == 130 else 'ended by SIGTERM'}"
    assert "again" not in "".join(err)
    assert not any(map(is_running, workers))


def test_ctrl_c_in_a_terminal_reaches_each_worker_once(launch, script, tmp_path):
    path = script(f"""
        import signal, sys, time
        heard = []
        signal.signal(signal.SIGINT, lambda *_: heard.append(1))
        {HERE}
        while not heard: time.sleep(0.01)
        time.sleep(0.3)
        print(len(heard))
    """)
    process = launch("--workers", "2", "--grace", "60", path)
    wait_for_pids(tmp_path, 2)
    os.killpg(process.pid, signal.SIGINT)
    code, out, _ = outcome(process)
    assert (code, sorted(out)) == (130, ["[worker 0] 1", "[worker 1] 1"])


def test_a_launcher_that_is_killed_leaves_nothing(launch, script, tmp_path):
    child = HERE + SLEEP
    path = script(f"""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-S", "-c", {child!r}])
        {HERE}
        import time; time.sleep(60)
    """)
    process = launch("--workers", "2", path)
    workers = wait_for_pids(tmp_path, 4)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_until(lambda: not any(map(is_running, workers)))


def test_a_launcher_that_is_killed_while_it_starts_leaves_nothing(launch, script, tmp_path):
    path = script(HERE + SLEEP)
    for delay in (0.05, 0.1, 0.15, 0.2):
        process = launch("--workers", "4", path)
        time.sleep(delay)
        process.kill()
        process.communicate()
        wait_until(lambda: not running_with(f"DIR={tmp_path}"))


def test_under_nohup_a_closed_terminal_does_not_matter(launch, script, tmp_path):
    path = script(HERE + "import time; time.sleep(0.3); print('done')")
    process = launch("--workers", "2", path, before=("nohup",))
    wait_for_pids(tmp_path, 2)
    process.send_signal(signal.SIGHUP)
    code, out, _ = outcome(process)
    assert (code, sorted(out)) == (0, ["[worker 0] done", "[worker 1] done"])


def test_each_worker_has_a_file_with_all_that_it_printed(launch, script, tmp_path):
    path = script("""
        import json, os, sys
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        print("[Gloo] Rank", index, os.environ["RX_RESTART"], flush=True)
        print("1/2\\r2/2", file=sys.stderr)
        if os.environ["RX_RESTART"] == "0" and index: raise SystemExit(3)
    """)
    for _ in range(2):  # the second run begins the files anew
        options = ("--workers", "2", "--max-restarts", "1", "--log-dir", "a/b")
        code, out, _ = outcome(launch(*options, path))
        assert (code, out) == (0, [])
    for index in (0, 1):
        logged = (tmp_path / "a" / "b" / f"worker-{index}.log").read_bytes().split(b"\n")
        told = [f"[Gloo] Rank {index} {restart}".encode() for restart in (0, 1)]
        assert sorted(logged) == sorted([*told, b"1/2\r2/2", b"1/2\r2/2", b""])


def test_a_folder_for_logs_that_cannot_be_made_is_refused(launch, script, tmp_path):
    (tmp_path / "file").touch()
    code, _, err = outcome(launch("--log-dir", "file/logs", script(HERE)))
    assert code == 2
    assert "--log-dir" in err[0]
    assert not list(tmp_path.glob("pid-*"))


def test_output_that_nobody_reads_does_not_keep_ctrl_c_from_working(launch, script, tmp_path):
    process = launch("--workers", "2", script(HERE + "while True: print('x' * 1000)"))
    workers = wait_for_pids(tmp_path, 2)
    time.sleep(0.2)  # until all pipes are full
    process.send_signal(signal.SIGINT)
    wait_until(lambda: not any(map(is_running, workers)))
    code, out, _ = outcome(process)
    assert code == 130
    assert {len(line) for line in out} - {len("[worker 0] ") + 1000} <= set(range(1100))


@pytest.mark.parametrize("plain", [False, True])
def test_prefixes_are_coloured_in_a_terminal(launch, script, plain):
    ours, theirs = pty.openpty()
    environ = {"TERM": "xterm", "NO_COLOR": "1" if plain else ""}
    process = launch("--workers", "1", script("print('a')"), stdout=theirs, environ=environ)
    _, err = process.communicate(timeout=100)
    assert select.select([ours], [], [], 60)[0]
    shown = os.read(ours, 1000)
    os.close(ours)
    os.close(theirs)
    assert shown == (b"[worker 0] a\r\n" if plain else b"\x1b[36m[worker 0]\x1b[0m a\r\n")
    assert err == ""


def test_all_are_started_again_after_a_failure(launch, script):
    path = script("""
        import json, os, sys
        restart = int(os.environ["RX_RESTART"])
        config = json.loads(os.environ["TF_CONFIG"])
        print(restart, config["cluster"]["worker"])
        if config["task"]["index"] == 0 and restart < 2: sys.exit(5)
    """)
    code, out, err = outcome(launch("--workers", "2", "--max-restarts", "3", path))
    assert code == 0
    runs = {line.partition("] ")[2] for line in out}
    assert {run[0] for run in runs} == set("012")
    assert len(runs) == 3  # the same addresses in both workers, others in each run
    told = [line for line in err if "starting all workers again" in line]
    assert told == [
        f"replicax: starting all workers again, restart {count} of 3" for count in (1, 2)
    ]


def test_restarts_come_to_an_end(launch, script):
    code, out, err = outcome(
        launch("--max-restarts", "1", script("print('a'); raise SystemExit(6)"))
    )
    assert (code, out) == (6, ["[worker 0] a"] * 2)
    assert len([line for line in err if "failed with exit code 6" in line]) == 2


def test_a_preemption_is_no_failure_and_restarts_all(launch, script):
    path = script("""
        import os
        print(os.environ["RX_RESTART"])
        if os.environ["RX_RESTART"] != "2": raise SystemExit(42)
    """)
    code, out, err = outcome(launch("--workers", "2", "--max-restarts", "2", path))
    assert (code, sorted(line[11:] for line in out)) == (0, list("001122"))
    assert [line.partition(" was ")[2] or line for line in err] == [
        "preempted: it has saved its state, to be started again (exit code 42)",
        "replicax: starting all workers again, restart 1 of 2",
        "preempted: it has saved its state, to be started again (exit code 42)",
        "replicax: starting all workers again, restart 2 of 2",
    ]


def test_a_preemption_without_a_restart_left_has_its_exit_code(launch, script):
    code, _, err = outcome(launch(script("raise SystemExit(42)")))
    assert code == 42
    assert err[0].endswith("it has saved its state, to be started again (exit code 42)")


def test_sigterm_leaves_time_to_save(launch, script, tmp_path):
    path = script(
        "import signal, sys, time\n"
        "def save(*_): time.sleep(0.5); print('saved'); sys.exit(42)\n"
        "signal.signal(signal.SIGTERM, save)\n" + HERE + SLEEP
    )
    process = launch("--workers", "2", "--max-restarts", "3", path)
    wait_for_pids(tmp_path, 2)
    process.terminate()
    code, out, err = outcome(process)
    assert (code, sorted(out)) == (143, ["[worker 0] saved", "[worker 1] saved"])
    assert err == ["replicax: ended by SIGTERM"]


def test_a_described_cluster_is_joined(launch, script):
    path = script("import os, sys; print(os.environ['TF_CONFIG'], sys.stdin.read())")
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    process = launch(path, environ={"TF_CONFIG": config}, stdin=subprocess.PIPE)
    out, err = process.communicate("typed", timeout=100)
    assert process.returncode == 0
    assert out == f"{config} typed\n"
    assert err == "replicax: joining the cluster that TFConfig describes, as worker 1\n"


def test_a_described_cluster_is_not_joined_if_workers_are_asked_for(launch, script):
    environ = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    process = launch("--workers", "2", script("print('a')"), environ=environ)
    assert sorted(outcome(process)[1]) == ["[worker 0] a", "[worker 1] a"]


def test_the_exit_code_of_a_worker_that_joins_is_ours(launch, script):
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    code, _, err = outcome(launch(script("raise SystemExit(4)"), environ={"TF_CONFIG": config}))
    assert code == 4
    assert "failed with exit code 4" in err[-1]


def test_a_wrong_description_is_refused(launch, script):
    code, _, err = outcome(launch(script(""), environ={"TF_CONFIG": "{"}))
    assert code == 2
    assert err[0].startswith("replicax run: error: TF_CONFIG is no JSON")


def test_of_several_hosts_the_own_workers_are_started(launch, script):
    path = script("import os; print(os.environ['TF_CONFIG'])")
    hosts = ("--hosts", "192.0.2.1,localhost:23451", "--by-hand")
    arguments = ("--workers", "4", *hosts, path, "a b")
    _, out, err = outcome(launch(*arguments))
    addresses = '["192.0.2.1:12345", "192.0.2.1:12346", "localhost:23451", "localhost:23452"]'
    assert sorted(out) == [
        f'[worker {i}] {{"cluster": {{"worker": {addresses}}}, '
        f'"task": {{"type": "worker", "index": {i}}}}}'
        for i in (2, 3)
    ]
    told = "replicax: this is localhost; on 192.0.2.1 type, in the same folder: replicax run "
    assert err == [f"{told}--workers 4 {' '.join(hosts)} {path} 'a b'"]


def test_what_to_type_on_other_hosts_shows_no_value(launch, script):
    path = script("")
    hosts = ("--hosts", "192.0.2.1,localhost:23461", "--by-hand")
    options = ("--env", "A=secret=1", "--env=B=secret", "--env", "HOME")
    _, _, err = outcome(launch(*hosts, *options, path, "--env", "C=own"))
    words = [*hosts, "--env", "A", "--env=B", "--env", "HOME", path, "--env", "C=own"]
    assert err[0].endswith(f" replicax run {' '.join(words)}")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nowhere.py"], "'nowhere.py'"),
        (["--env", "x", "-m", "m"], "NAME=VALUE"),
        (["--hosts", "a b", "-m", "m"], "'a b'"),
        (["--hosts", "192.0.2.1", "--by-hand", "-m", "m"], "--by-hand"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, complaint, capsys, monkeypatch):
    monkeypatch.setattr(_run, "detect", lambda environ: None)
    assert main(["run", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("replicax run: error: ")
    assert complaint in said


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: script"),
        (["--workers", "0", "x.py"], "must be a whole number of at least 1, got '0'"),
        (["--max-restarts", "-1", "x.py"], "must be a whole number, 0 or more, got '-1'"),
        (["--grace", "1e3", "x.py"], "must be seconds such as 10 or 0.5, got '1e3'"),
        (["--workerz", "2", "x.py"], "unrecognized arguments: --workerz"),
    ],
)
def test_bad_arguments_are_refused(arguments, complaint, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["run", *arguments])
    assert exit_.value.code == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_help_loads_nothing_that_it_does_not_need():
    program = """
        import sys
        from replicax.launch import _cli
        for typed in (["run", "x.py"], ["compare"]):
            _cli.build_parser().parse_args(typed)
        names = ("json", "subprocess", "replicax.launch._run", "replicax._tools")
        print([n for n in (*names, "jax", "keras", "numpy", "rich") if n in sys.modules])
    """
    assert run_python(program) == "['json', 'subprocess']\n"


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_is_there_at_once(command):
    def seconds_of_cpu():  # because test machines are not idle: 0.1 s
        quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        arguments = [*REPLICAX, command, "--help"]
        child = os.posix_spawn(sys.executable, arguments, os.environ, file_actions=quiet)
        _, status, usage = os.wait4(child, 0)
        assert status == 0
        return usage.ru_utime

    assert min(seconds_of_cpu() for _ in range(3)) < 1.0


def test_help_of_every_command_loads_nothing_slow():
    program = """
        import contextlib, io, re, sys
        from replicax.launch import _cli
        def help_of(*typed):
            with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as text:
                _cli.main([*typed, "--help"])
            return text.getvalue()
        commands = re.findall(r"^    ([a-z0-9]+) ", help_of(), re.M)
        shown = [name for name in commands if f"usage: replicax {name} " in help_of(name)]
        loaded = {"jax", "jaxlib", "keras", "numpy", "rich"} & set(sys.modules)
        print(commands == shown, len(shown) > 9, sorted(loaded))
    """
    assert run_python(program) == "True True []\n"


def test_a_grace_can_be_given(launch, script, tmp_path):
    path = script("import signal; signal.signal(15, signal.SIG_IGN)\n" + HERE + SLEEP)
    process = launch("--grace", "0.2", path)
    wait_for_pids(tmp_path, 1)
    began = time.monotonic()
    process.terminate()
    assert outcome(process)[0] == 143
    assert time.monotonic() - began < Grace().after_sigterm


def test_workers_compute_together(launch, script):
    path = script("""
        import json, os
        import jax
        import numpy as np
        config = json.loads(os.environ["TF_CONFIG"])
        addresses, rank = config["cluster"]["worker"], config["task"]["index"]
        jax.distributed.initialize(addresses[0], len(addresses), rank)
        from jax.sharding import NamedSharding, PartitionSpec
        mesh = jax.make_mesh((jax.device_count(),), ("all",))
        sharding = NamedSharding(mesh, PartitionSpec("all"))
        own = np.full((jax.local_device_count(),), rank + 1.0)
        rows = jax.make_array_from_process_local_data(sharding, own)
        sum_up = jax.shard_map(
            lambda row: jax.lax.psum(row, "all"),
            mesh=mesh, in_specs=PartitionSpec("all"), out_specs=PartitionSpec(),
        )
        print("sum", float(jax.jit(sum_up)(rows)[0]))
    """)
    # It joins by itself.
    own = ("--env", "JAX_PLATFORMS=cpu", "--env", "RX_JOIN=0")
    options = ("--workers", "2", "--devices-per-worker", "3", *own)
    code, out, _ = outcome(launch(*options, path))
    assert code == 0
    # 3 devices with 1 and 3 with 2.
    assert sorted(line for line in out if "sum" in line) == [
        "[worker 0] sum 9.0",
        "[worker 1] sum 9.0",
    ]


def test_an_exit_code_is_that_of_the_failure_not_of_the_signal_after_it():
    assert _run.exit_code(Outcome(rx.errors.ProcessFailed(0, -9, ""), signal.SIGINT)) == 137
