"""`--hosts`: addresses, which host this machine is, and workers that a false `ssh` starts."""

import os
import re
import signal

import pytest

import replicax as rx
from replicax.launch import _ssh
from replicax.launch._cli import main
from replicax.launch._ssh import Host, Ssh, addresses, parse_hosts, place, this_host

from exposition import strict
from helpers import completed, wait_until
from processes import is_running, outcome, wait_for_pids

AB = [Host("a", 1), Host("b", 1)]


def test_hosts_may_have_ports():
    assert parse_hosts("node-1.x, 10.0.0.2:9000,[fe80::1]:7") == [
        Host("node-1.x", 12345),
        Host("10.0.0.2", 9000),
        Host("[fe80::1]", 7),
    ]


@pytest.mark.parametrize("text", ["", "a,", "a b", "a:x", "a:0", "a:65536", "http://a", "fe80::1"])
def test_what_is_no_host_is_refused(text):
    with pytest.raises(rx.errors.UsageError, match="--hosts"):
        parse_hosts(text)


def test_a_host_is_named_once():
    with pytest.raises(rx.errors.UsageError, match="'a,a:2'"):
        parse_hosts("a,a:2")


def test_the_ports_of_one_host_follow_each_other():
    hosts = [Host("a", 7), Host("b", 9)]
    assert addresses(hosts, 4) == ["a:7", "a:8", "b:9", "b:10"]


def test_every_host_runs_equally_many_workers():
    with pytest.raises(rx.errors.UsageError, match="4 workers, or"):
        addresses(AB, 3)


@pytest.mark.parametrize(
    ("hosts", "how"),
    [
        (AB, {"_own_names": lambda: ["b.example.org", "b"], "_is_own": lambda host: 1 / 0}),
        ([Host("A", 1), Host("B", 1)], {"_own_names": lambda: ["b"]}),
        (AB, {"_own_names": lambda: ["c"], "_is_own": lambda host: host == "b"}),
        ([Host("192.0.2.1", 1), Host("127.0.0.1", 1)], {}),
        ([Host("192.0.2.1", 1), Host(_ssh._own_names()[0], 1)], {}),
    ],
    ids=["name", "capitals", "address", "loopback", "own name"],
)
def test_this_machine_is_found(hosts, how, monkeypatch):
    for name, found in how.items():
        monkeypatch.setattr(_ssh, name, found)
    assert this_host(hosts) == 1


def test_another_machine_is_an_error(monkeypatch):
    monkeypatch.setattr(_ssh, "_own_names", lambda: ["c", "d"])
    monkeypatch.setattr(_ssh, "_is_own", lambda host: False)
    with pytest.raises(rx.errors.UsageError, match="a, b, .*c or d"):
        this_host(AB)


def test_two_names_of_this_machine_are_an_error(monkeypatch):
    monkeypatch.setattr(_ssh, "_own_names", lambda: ["c"])
    monkeypatch.setattr(_ssh, "_is_own", lambda host: True)
    with pytest.raises(rx.errors.UsageError, match="a, b are"):
        this_host(AB)


def test_a_name_that_nobody_knows_is_another_machine(monkeypatch):
    def unknown(*args, **options):
        raise OSError

    monkeypatch.setattr(_ssh.socket, "getaddrinfo", unknown)
    monkeypatch.setattr(_ssh, "_own_names", lambda: ["c"])
    with pytest.raises(rx.errors.UsageError, match="none is this machine"):
        this_host(AB)


# As with sshd, the command has a session, a folder and an environment of its own, and loses its
# input when ssh ends.
FALSE_SSH = """#!/bin/bash
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
echo "$host $*" >> "$DIR/asked"
if [ "$host" = dead ]; then
    echo "ssh: connect to host dead port 22: Connection timed out" >&2; exit 255
fi
times=$(grep -c "^$host " "$DIR/asked")
if [ "$host" = full ] && [ "$times" = "$WHEN_FULL" ]; then
    echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255
fi
printf "$GREETING" >&2
cd /
exec 3<&0
setsid env -i PATH="$PATH" HOME="$HOME" DIR="$DIR" HOST="$host" sh -c "$*" < <(cat <&3 2>/dev/null)
"""
HERE = "import os, pathlib; pathlib.Path(os.environ['DIR'], f'pid-{os.getpid()}').touch()\n"
SLEEP = "import time; time.sleep(600)\n"
# Tests may run beside each other.
FIRST = 23800 + 20 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
HOSTS = f"node1:{FIRST},node2:{FIRST + 10}"
NONE = ("--env", "RX_JOIN=0")


@pytest.fixture
def over_hosts(launch, tmp_path):
    """Start `replicax run --hosts` with a false ssh."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(FALSE_SSH)
    ssh.chmod(0o755)
    path = f"{ssh.parent}:{os.environ['PATH']}"

    def over_hosts(*arguments, environ=None, hosts=HOSTS, **options):
        asked = ("--hosts", hosts, *NONE, *arguments)
        return launch(*asked, environ={"PATH": path, **(environ or {})}, **options)

    return over_hosts


def test_each_host_runs_its_workers_in_the_same_folder(over_hosts, script, tmp_path):
    path = script("""
        import json, os, sys
        config = json.loads(os.environ["TF_CONFIG"])
        print(os.environ["HOST"], os.getcwd(), sys.argv[1:], config["cluster"]["worker"])
    """)
    arguments = ["a b", "$HOME", "'", "-x"]
    code, out, err = outcome(over_hosts("--workers-per-host", "2", path, *arguments))
    addresses = [f"node{1 + i // 2}:{FIRST + 10 * (i // 2) + i % 2}" for i in range(4)]
    told = f"{tmp_path} {arguments} {addresses}"
    assert (code, err) == (0, [])
    assert sorted(out) == [
        f"[node{1 + i // 2}:worker {i}] node{1 + i // 2} {told}" for i in range(4)
    ]


def test_only_named_variables_travel_and_none_on_a_command_line(over_hosts, script, tmp_path):
    path = script("""
        import os
        print([os.environ.get(name) for name in ("MINE", "GIVEN", "OTHER", "X")])
        print(os.environ["RX_CLUSTER_SECRET"])
    """)
    environ = {"MINE": "1 2", "OTHER": "3", "RX_CLUSTER_SECRET": "a" * 40}
    options = ("--no-prefix", "--env", "MINE", "--env", "GIVEN=a=$b", path)
    _, out, _ = outcome(over_hosts(*options, environ=environ))
    assert sorted(out) == sorted(2 * ["['1 2', 'a=$b', None, None]", "a" * 40])
    asked = (tmp_path / "asked").read_text()
    assert "node1 " in asked
    assert "aaaa" not in asked
    assert "GIVEN" not in asked


def test_all_have_one_new_secret(over_hosts, script):
    path = script("import os; print(os.environ['RX_CLUSTER_SECRET'])")
    _, out, _ = outcome(over_hosts("--no-prefix", path))
    assert len(out) == 2
    assert len(set(out)) == 1
    assert len(out[0]) >= 32


def test_a_secret_in_a_file_is_that_of_all(over_hosts, script, tmp_path):
    (tmp_path / "secret").write_text("b" * 40 + "\n")
    (tmp_path / "secret").chmod(0o600)
    path = script("import os; print(os.environ['RX_CLUSTER_SECRET'])")
    environ = {"RX_CLUSTER_SECRET_FILE": str(tmp_path / "secret")}
    assert outcome(over_hosts("--no-prefix", path, environ=environ))[1] == 2 * ["b" * 40]


@pytest.mark.parametrize(
    ("content", "mode"),
    [(b"b" * 40, 0o644), (b"\n", 0o600), (b"short", 0o600), (b"\xff" * 40, 0o600), (None, 0o600)],
)
def test_a_file_that_holds_no_good_secret_is_refused(over_hosts, script, tmp_path, content, mode):
    file = tmp_path / "secret"
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content)
    file.chmod(mode)
    environ = {"RX_CLUSTER_SECRET_FILE": str(file)}
    code, out, err = outcome(over_hosts(script(HERE), environ=environ))
    assert (code, out) == (2, [])
    assert err[0].startswith("replicax run: error: ")
    assert not list(tmp_path.glob("pid-*"))


@pytest.mark.parametrize("ending", ["sys.exit(3)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_the_first_that_fails_ends_all_and_is_named(over_hosts, script, tmp_path, ending):
    path = script(f"""
        {HERE}
        import signal, sys, time
        if os.environ["HOST"] == "node2":
            print("what I did last")
            {ending}
        time.sleep(600)
    """)
    code, _, err = outcome(over_hosts("--grace", "0.5", path))
    assert code == (3 if "exit" in ending else 128 + 9)
    assert "node2:worker 1 failed with" in err[0]
    assert err[1] == "    what I did last"
    workers = wait_for_pids(tmp_path, 2)
    wait_until(lambda: not any(map(is_running, workers)))


def test_an_exit_code_above_the_signals_is_none_of_them(over_hosts, script):
    code, _, err = outcome(over_hosts("--workers", "2", script("raise SystemExit(200)")))
    assert code == 200
    assert "exit code 200" in err[0]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_workers_of_all_hosts(over_hosts, script, tmp_path, signum, code):
    path = script(
        "import signal, sys\n"
        "def end(number, frame): print('heard', number); sys.exit(0)\n"
        "for number in (2, 15): signal.signal(number, end)\n" + HERE + SLEEP
    )
    process = over_hosts(path)
    wait_for_pids(tmp_path, 2)
    process.send_signal(signum)
    returncode, out, _ = outcome(process)
    assert returncode == code
    assert sorted(out) == [f"[node{1 + i}:worker {i}] heard {int(signum)}" for i in (0, 1)]


def test_what_does_not_end_is_killed_there(over_hosts, script, tmp_path):
    path = script(
        "import signal\nfor number in (2, 15): signal.signal(number, signal.SIG_IGN)\n"
        + HERE
        + SLEEP
    )
    process = over_hosts("--grace", "0.3", path)
    workers = wait_for_pids(tmp_path, 2)
    process.terminate()
    assert outcome(process)[0] == 143
    assert not any(map(is_running, workers))


@pytest.mark.parametrize("who", ["launcher", "connection"])
def test_a_connection_that_breaks_ends_the_workers(over_hosts, script, tmp_path, who):
    process = over_hosts("--grace", "1", script(HERE + SLEEP))
    workers = wait_for_pids(tmp_path, 2)
    if who == "launcher":
        process.kill()
        process.communicate()
    else:
        found = completed(["pgrep", "-f", f"{tmp_path}/bin/ssh .*node2"])
        os.killpg(int(found.stdout.split()[0]), signal.SIGKILL)
        assert outcome(process)[0] == 128 + 9
    wait_until(lambda: not any(map(is_running, workers)))


@pytest.mark.parametrize("greeting", ["", "welcome"])
def test_all_are_started_again_after_a_failure(over_hosts, script, greeting):
    path = script("""
        import os, time
        print(os.environ["RX_RESTART"])
        if os.environ["RX_RESTART"] == "0":
            if os.environ["HOST"] == "node2": raise SystemExit(5)
            time.sleep(600)
    """)
    options = ("--max-restarts", "1", "--no-prefix")
    code, out, err = outcome(over_hosts(*options, path, environ={"GREETING": greeting}))
    assert (code, sorted(out)) == (0, list("0011"))
    assert not any("begun" in line for line in err)


def test_parameter_servers_are_spread_over_hosts(over_hosts, script):
    path = script("""
        import json, os, time
        task = json.loads(os.environ["TF_CONFIG"])["task"]
        names = os.environ["HOST"], task["type"], str(task["index"]), os.environ["RX_RESTART"]
        print(*names)
        if task["type"] == "ps" and os.environ["RX_RESTART"] == "0": raise SystemExit(1)
        time.sleep(5 if task["type"] == "chief" else 600)
    """)
    code, out, err = outcome(over_hosts("--ps", "2", "--no-prefix", path))
    assert code == 0
    assert sorted(out) == [
        "node1 chief 0 0",
        "node1 ps 0 0",
        "node1 ps 0 1",
        "node1 worker 0 0",
        "node2 ps 1 0",
        "node2 ps 1 1",
        "node2 worker 1 0",
    ]
    assert sorted(line[10:20] for line in err) == ["node1:ps 0", "node2:ps 1"]


def test_a_host_that_does_not_answer_is_named_and_nothing_starts(over_hosts, script, tmp_path):
    code, out, err = outcome(over_hosts(script(HERE), hosts=f"node1:{FIRST},dead"))
    assert (code, out) == (2, [])
    assert "dead: ssh: connect to host dead port 22: Connection timed out" in err[0]
    assert not list(tmp_path.glob("pid-*"))


@pytest.mark.parametrize("ps", [(), ("--ps", "1")])
def test_an_ssh_that_never_starts_its_worker_is_not_tried_again(over_hosts, script, tmp_path, ps):
    path = script(HERE + "import time\nif os.environ['RX_RESTART'] == '0': time.sleep(600)")
    process = over_hosts(
        *("--max-restarts", "3", "--grace", "1", *ps, path),
        hosts=f"node1:{FIRST},full:{FIRST + 10}",
        environ={"WHEN_FULL": "2"},  # the first time it is asked whether it could run the program
    )
    code, _, err = outcome(process)
    assert code == 255
    text = "\n".join(err)
    assert "full:worker 1" in text and "Connection closed by remote host" in text
    assert "restart" not in text
    assert len(list(tmp_path.glob("pid-*"))) <= 2 + len(ps) // 2


def test_a_host_that_cannot_be_reached_later_uses_up_restarts(over_hosts, script):
    path = script("""
        import os, time
        if os.environ["RX_RESTART"] == "0": raise SystemExit(5)
        if os.environ["RX_RESTART"] == "1": time.sleep(600)
        print("done")
    """)
    process = over_hosts(
        *("--max-restarts", "2", "--grace", "1", "--no-prefix", path),
        hosts=f"node1:{FIRST},full:{FIRST + 10}",
        environ={"WHEN_FULL": "3"},
    )
    code, out, err = outcome(process)
    assert (code, out) == (0, ["done", "done"])
    assert "restart 2 of 2" in "\n".join(err)


def test_another_script_there_is_refused(over_hosts, script, tmp_path):
    path = script("print('a')")
    other = tmp_path / "other.py"
    other.write_text("print('b')")
    # node2 has it by the time it is asked; the launcher has read its own before.
    (tmp_path / "bin" / "ssh").write_text(
        FALSE_SSH.replace("cd /\n", f'cd /\n[ "$host" = node2 ] && cp {other} {path}\n')
    )
    code, out, err = outcome(over_hosts(path))
    assert (code, out) == (2, [])
    assert f"another {path} in {tmp_path} there" in err[0]


def test_a_folder_that_is_not_there_is_named(over_hosts, script, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    path = script("print('a')")
    (tmp_path / "bin" / "ssh").write_text(
        FALSE_SSH.replace("cd /\n", f'cd /\n[ "$host" = node2 ] && rm -r {folder}\n')
    )
    code, _, err = outcome(over_hosts(path, cwd=folder))
    assert code == 2
    assert f"node2: no folder {folder} there: " in err[0]


def test_a_python_that_is_not_there_is_named(over_hosts, script):
    code, _, err = outcome(over_hosts("--python", "/nowhere/python", script("")))
    assert code == 2
    assert err[0].count("/nowhere/python") == 2


@pytest.mark.parametrize("size", [1, 100_000])  # the second fills the pipe of a host that waits
def test_ctrl_c_while_hosts_are_asked_starts_nothing(over_hosts, script, tmp_path, size):
    (tmp_path / "bin" / "ssh").write_text("#!/bin/sh\ntouch $DIR/asked\nexec sleep 600\n")
    process = over_hosts("--env", "LONG", script(HERE), environ={"LONG": "a" * size})
    wait_until(lambda: (tmp_path / "asked").exists())
    process.send_signal(signal.SIGINT)
    assert outcome(process)[0] == 130
    assert not list(tmp_path.glob("pid-*"))


def test_this_machine_needs_no_ssh(over_hosts, script, tmp_path):
    _, out, _ = outcome(over_hosts(script("print('a')"), hosts=f"localhost:{FIRST}"))
    assert out == ["[localhost:worker 0] a"]
    assert not (tmp_path / "asked").exists()


def test_another_command_than_ssh_can_reach_the_hosts(over_hosts, script, tmp_path):
    way = tmp_path / "reach"
    way.write_text('#!/bin/sh\n[ "$1" = -v ] || exit 9\nHOST="$2" exec sh -c "$3"\n')
    way.chmod(0o755)
    path = script("import os; print(os.environ['HOST'])")
    said = outcome(over_hosts("--ssh", f"{way} -v", "--no-prefix", path))
    assert sorted(said[1]) == ["node1", "node2"]
    said = outcome(over_hosts("--no-prefix", path, environ={"RX_SSH": f"{way} -v"}))
    assert sorted(said[1]) == ["node1", "node2"]


@pytest.mark.parametrize("text", ["ssh -o 'x", " ", "ssh \\"])
@pytest.mark.parametrize("source", ["--ssh", "RX_SSH"])
def test_a_command_that_is_none_is_refused(text, source):
    option, environ = (text, {}) if source == "--ssh" else (None, {"RX_SSH": text})
    with pytest.raises(rx.errors.UsageError, match=source) as caught:
        Ssh.of(option, None, environ)
    assert repr(text) in str(caught.value)


def test_an_order_that_no_pipe_holds_arrives(over_hosts, script):
    path = script("import os; print(len(os.environ['LONG']))")
    long = "a" * 100_000
    _, out, _ = outcome(over_hosts("--no-prefix", "--env", "LONG", path, environ={"LONG": long}))
    assert out == ["100000"] * 2


def test_ssh_asks_nothing_and_gives_up_in_time():
    command = Ssh(("ssh", "-p", "2222"), "/usr/bin/python3").to(Host("node.invalid", 1))
    assert command[:3] == ("ssh", "-p", "2222")
    assert "-oBatchMode=yes" in command
    assert any(word.startswith("-oConnectTimeout=") for word in command)
    assert command[-2] == "node.invalid"


def test_workers_fill_one_host_after_the_other():
    placed = place([Host("a", 7), Host("b", 9)], 4, None)
    assert [(one.host, one.address) for one in placed] == [
        (0, "a:7"),
        (0, "a:8"),
        (1, "b:9"),
        (1, "b:10"),
    ]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--hosts", "a,b", "--by-hand", "--ps", "1"], {"--ps", "--by-hand"}),
        (["--hosts", "a,b", "--by-hand", "--ssh", "x"], {"--ssh", "--by-hand"}),
        (["--workers", "2", "--workers-per-host", "1"], {"--workers-per-host", "--hosts"}),
        (
            ["--hosts", "a,b", "--workers", "2", "--workers-per-host", "1"],
            {"--workers", "--workers-per-host"},
        ),
    ],
)
def test_options_that_do_not_go_together_are_named(arguments, named, capsys):
    assert main(["run", *arguments, "-m", "m"]) == 2
    received = capsys.readouterr().err.split("error: ")[1].split(". ")[0]
    assert set(re.findall("--[a-z-]+", received)) == named


@pytest.mark.parametrize(
    "arguments",
    [
        ["--ssh", "ssh"],
        ["--by-hand"],
        ["--workers-per-host", "2"],
        ["--hosts", "a,-oProxyCommand=b"],
        ["--hosts", "a,b", "--workers", "3"],
        ["--hosts", "a:65535", "--workers", "2"],
        ["--hosts", "a:65535", "--workers", "1", "--ps", "1"],
        ["--hosts", "localhost:65535", "--by-hand", "--workers", "2"],
    ],
)
def test_options_that_mean_nothing_are_refused(arguments, capsys, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert main(["run", *arguments, "-m", "m"]) == 2
    assert capsys.readouterr().err.startswith("replicax run: error: ")


def test_workers_of_other_hosts_are_in_the_metrics(over_hosts, script, tmp_path):
    path = script("""
        import os
        mark, host = b"\\x1ereplicax\\x1e", os.environ["HOST"]
        if os.environ["RX_METRICS_FILE"] == "-":
            report = f'replicax_steps_total 5\\nreplicax_worker_info{{host="{host}"}} 1\\n'
            os.write(2, b"10%\\r" + mark + report.encode() + mark + b"20%\\r\\n")
    """)
    code, out, err = outcome(over_hosts("--metrics", str(tmp_path / "a.prom"), path))
    assert (code, out) == (0, [])
    assert sorted(err[1:]) == ["[node1:worker 0] 20%", "[node2:worker 1] 20%"]
    found = strict((tmp_path / "a.prom").read_text())
    for worker in (0, 1):
        assert found["replicax_steps_total", (("worker", str(worker)),)] == 5
        where = ("worker", str(worker)), ("host", f"node{worker + 1}")
        assert found["replicax_worker_info", where] == 1
