"""Real processes: what they print arrives exactly, and none is left, however it ends."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from functools import partial

import pytest

from replicax._processes import rules, supervisor
from replicax._processes.child import ProcessPlan, Watcher
from replicax._processes.output import ERR, OUT
from replicax._processes.rules import Grace, Rules, Signals
from replicax._processes.supervisor import supervise
from replicax.cluster_resolver import Task

from helpers import wait_until
from processes import is_running, wait_for_pids

# Parts of programs. A file named after the process id says that a worker has got so far, and
# which process must be gone in the end.
# It runs until it is ended.
SLEEP = "import time; time.sleep(600)"
HERE = "import os, pathlib; pathlib.Path(os.environ['DIR'], f'pid-{os.getpid()}').touch()"
AWAIT_IT = """
import os, pathlib, time
while not list(pathlib.Path(os.environ["DIR"]).glob("pid-*")): time.sleep(0.01)
"""
AWAIT_ITS_END = """
import os, pathlib, time
(number,) = pathlib.Path(os.environ["DIR"]).glob("pid-*")
while pathlib.Path("/proc", number.name[4:]).exists(): time.sleep(0.01)
"""
FAIL = "raise SystemExit(3)"
STUBBORN = """
import signal
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
"""
TIDY = """
import signal, sys
def tidy(number, frame): print("heard", signal.Signals(number).name); sys.exit(0)
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM): signal.signal(number, tidy)
"""
CHILD = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", {HERE + chr(10) + SLEEP!r}])
"""
QUICK = Grace(0.4, 0.4)


def await_the_end(folder, count):
    """Wait until this many processes have written a file, and have ended."""
    pids = wait_for_pids(folder, count)
    wait_until(lambda: not any(map(is_running, pids)))


def join(program):
    parts = [program] if isinstance(program, str) else program
    return "\n".join(textwrap.dedent(part).strip() for part in parts)


class Sink:
    """Keeps what is written, can be full or broken, and can wait before anybody looks."""

    def __init__(self, *, wait=lambda: None, full_until=0.0, broken_after=None):
        self.written = {OUT: b"", ERR: b""}
        self.push = wait
        self.full_until = full_until
        self.broken_after = broken_after

    def colours(self, stream):
        return False

    def write(self, stream, data):
        self.written[stream] += data

    def blocked_on(self):
        return None

    def is_full(self):
        return time.monotonic() < self.full_until

    def is_broken(self):
        return self.broken_after is not None and len(self.written[OUT]) > self.broken_after

    @property
    def out(self):
        return self.written[OUT].decode().splitlines()

    @property
    def err(self):
        return self.written[ERR].decode().splitlines()


@pytest.fixture
def start(tmp_path):
    """Supervise a worker for each program, in one or several parts; give outcome and sink."""

    def start(*programs, sink=None, signals=None, grace=QUICK, **rules):
        sink, signals = sink or Sink(), signals or Signals()
        plans = [
            ProcessPlan(
                Task("worker", index),
                (sys.executable, "-S", "-c", join(program)),
                {"DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
            )
            for index, program in enumerate(programs)
        ]
        with signals.noted():
            outcome = supervise(plans, sink=sink, signals=signals, rules=Rules(grace, **rules))
        return outcome, sink

    yield start
    await_the_end(tmp_path, 0)


def test_a_last_line_without_end_is_not_lost_nor_mixed(start):
    _, sink = start("print('a', end='')", "print('b\\nc', end='')")
    assert sorted(sink.out) == ["[worker 0] a", "[worker 1] b", "[worker 1] c"]


def test_a_line_that_comes_in_pieces_is_one_line(start):
    pieces = "import time\nfor part in 'abc': print(part, end=''); time.sleep(0.05)"
    _, sink = start(pieces, pieces.replace("abc", "xyz"))
    assert sorted(sink.out) == ["[worker 0] abc", "[worker 1] xyz"]


def test_a_megabyte_of_each_arrives_line_by_line(start):
    code = """
        import os, sys
        out = os.fdopen(1, "w", 1 << 16)
        for line in range(20000):
            out.write(f"{line} " + "x" * (line % 100) + "\\n")
    """
    _, sink = start(code, code)
    expected = [f"{line} " + "x" * (line % 100) for line in range(20000)]
    for name in ("[worker 0] ", "[worker 1] "):
        own = [line.removeprefix(name) for line in sink.out if line.startswith(name)]
        assert own == expected
    assert len(sink.out) == 40000
    assert sum(map(len, expected)) > 1_000_000


def test_a_reader_that_is_behind_makes_the_workers_wait_but_loses_nothing(start):
    sink = Sink(full_until=time.monotonic() + 0.4)
    outcome, _ = start("import os; os.write(1, b'x' * 50000 + b'\\n')", sink=sink)
    assert outcome.failure is None
    assert [len(line) for line in sink.out] == [len("[worker 0] ") + 50000]


def test_a_reader_that_is_behind_does_not_keep_us_from_ending_all(start):
    sink = Sink(full_until=time.monotonic() + 0.6)
    noise = (HERE, "while True: print('x' * 1000)")
    outcome, _ = start(noise, "raise SystemExit(3)", sink=sink)
    assert outcome.failure.rank == 1


def test_a_reader_that_has_gone_ends_all(start):
    outcome, _ = start((HERE, "while True: print('x')"), sink=Sink(broken_after=100))
    assert outcome.signum == signal.SIGPIPE


def test_the_tail_has_the_last_lines_of_both_streams(start):
    code = """
        import sys
        for line in range(30): print(line)
        print("z" * 3000, file=sys.stderr)
        sys.exit(1)
    """
    outcome, _ = start(code)
    tail = outcome.failure.tail.splitlines()
    assert len(tail) == 20
    assert set(tail) == {"z" * 2000, *map(str, range(11, 30))}


def test_the_tail_has_nothing_of_what_gloo_says_about_its_peers(start):
    peers = "[Gloo] Rank 1 is connected to 1 peer ranks."
    outcome, _ = start(f"print('why'); print({peers!r}); raise SystemExit(3)")
    assert outcome.failure.tail == "why"


def test_what_comes_after_the_culprit_is_no_culprit(start, tmp_path):
    # Both end before we look: the one that was killed is why the other failed.
    programs = (HERE, "raise SystemExit(1)"), (HERE, "os.kill(os.getpid(), 9)")
    outcome, _ = start(*programs, sink=Sink(wait=partial(await_the_end, tmp_path, 2)))
    assert outcome.failure.rank == 1


SURVIVE = "time.sleep(0.2); print('worker 1 is lost'); raise SystemExit(70)"


@pytest.fixture
def time_to_speak(monkeypatch):
    monkeypatch.setattr(rules, "_SECONDS_TO_SPEAK", 60.0)


@pytest.mark.usefixtures("time_to_speak")
def test_those_that_lose_a_worker_have_time_to_say_so(start):
    programs = (HERE, "import time", SURVIVE), (AWAIT_IT, "print('why')", FAIL)
    outcome, sink = start(*programs, grace=Grace(60, 60))
    assert (outcome.failure.rank, outcome.failure.tail) == (1, "why")
    assert "[worker 0] worker 1 is lost" in sink.out


@pytest.mark.usefixtures("time_to_speak")
@pytest.mark.parametrize(
    ("late", "code"), [(FAIL, 3), ("os.kill(os.getpid(), 9)", -9), ("raise SystemExit(42)", 42)]
)
def test_one_that_fails_is_to_blame_although_a_survivor_ends_first(start, late, code):
    waits = AWAIT_IT.replace("pid-", "end-"), "time.sleep(0.2)"
    ends = "import os, pathlib; pathlib.Path(os.environ['DIR'], 'end-0').touch(); os._exit(70)"
    outcome, _ = start(ends, (*waits, late), ends, grace=Grace(60, 60))
    assert (outcome.failure.rank, outcome.failure.returncode) == (1, code)


def test_one_that_fails_although_it_was_asked_to_end_is_to_blame(start):
    fails = TIDY.replace("sys.exit(0)", "sys.exit(3)")
    programs = (AWAIT_IT, "raise SystemExit(70)"), (fails, HERE, SLEEP)
    outcome, _ = start(*programs, grace=Grace(20, 20))
    assert (outcome.failure.rank, outcome.failure.returncode) == (1, 3)


def test_without_a_culprit_a_survivor_says_who_it_was(start):
    survivor = "print('worker 7 of another machine is lost'); raise SystemExit(70)"
    obeys = TIDY.replace("sys.exit(0)", "sys.exit(143)")
    programs = (HERE, SLEEP), (AWAIT_IT, survivor), (obeys, SLEEP)
    outcome, _ = start(*programs)
    assert (outcome.failure.rank, outcome.failure.returncode) == (1, 70)
    assert outcome.failure.tail == "worker 7 of another machine is lost"


def test_when_one_was_preempted_the_others_may_save_in_peace(start):
    preempted = "raise SystemExit(42)"
    saves = "time.sleep(1); print('saved')"
    programs = (AWAIT_IT, preempted), (TIDY, HERE, "import time", saves, preempted)
    outcome, sink = start(*programs, grace=Grace(0.1, 20))
    assert outcome.failure.returncode == 42
    assert sink.out == ["[worker 1] saved"]


def test_a_failure_after_a_preemption_ends_all(start):
    programs = (HERE, "raise SystemExit(42)"), SLEEP, (AWAIT_IT, AWAIT_ITS_END, FAIL)
    outcome, _ = start(*programs, grace=Grace(0.1, 500))
    assert outcome.failure.returncode == 42


def test_a_worker_that_does_not_listen_is_killed_after_the_grace(start):
    began = time.monotonic()
    outcome, _ = start((STUBBORN, HERE, SLEEP), (AWAIT_IT, FAIL))
    assert outcome.failure.rank == 1
    assert time.monotonic() - began > QUICK.after_failure


def test_a_worker_has_time_to_end_well(start):
    outcome, sink = start((TIDY, HERE, SLEEP), (AWAIT_IT, FAIL), grace=Grace(20, 20))
    assert outcome.failure.rank == 1
    assert sink.out == ["[worker 0] heard SIGTERM"]


def test_whom_the_leader_leaves_behind_is_asked_to_end_soon(start):
    stays = "import time; time.sleep(60); print('was not asked')"
    outcome, sink = start(
        (TIDY, HERE, stays), AWAIT_IT, grace=Grace(200, 200), leader=Task("worker", 1)
    )
    assert (outcome.failure, sink.out) == (None, ["[worker 0] heard SIGTERM"])


def test_processes_that_a_worker_started_end_with_it(start, tmp_path):
    outcome, _ = start((CHILD, AWAIT_IT))
    assert outcome.failure is None
    await_the_end(tmp_path, 1)


def test_processes_of_a_worker_that_was_killed_end_with_it(start, tmp_path):
    outcome, _ = start((CHILD, AWAIT_IT, "os.kill(os.getpid(), 9)"))
    assert outcome.failure.returncode == -9
    await_the_end(tmp_path, 1)


def test_a_daemon_that_holds_the_pipe_open_is_not_waited_for(start, tmp_path):
    in_a_session = CHILD.replace("])", "], start_new_session=True)")
    outcome, sink = start((in_a_session, AWAIT_IT, "print('no end', end='')"))
    assert outcome.failure is None
    assert sink.out == ["[worker 0] no end"]
    (process_id,) = wait_for_pids(tmp_path, 1)
    assert is_running(process_id)
    os.kill(process_id, signal.SIGKILL)
    wait_until(lambda: not is_running(process_id))


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_us_is_passed_on_and_ends_all(start, signum):
    sends = f"os.kill(os.getppid(), {int(signum)})"
    programs = (TIDY, HERE, SLEEP), (AWAIT_IT, sends, SLEEP)
    outcome, sink = start(*programs, grace=Grace(20, 20))
    assert (outcome.signum, outcome.failure) == (signum, None)
    assert f"[worker 0] heard {signum.name}" in sink.out


def test_a_worker_that_a_scheduler_ends_with_us_has_not_failed(start, tmp_path):
    ends_both = HERE, "os.kill(os.getppid(), 15); os.kill(os.getpid(), 15)"
    outcome, _ = start(ends_both, sink=Sink(wait=partial(await_the_end, tmp_path, 1)))
    assert (outcome.signum, outcome.failure) == (signal.SIGTERM, None)


def test_a_second_ctrl_c_does_not_wait(start):
    twice = "while True: time.sleep(0.2); os.kill(os.getppid(), 2)"  # two may be heard as one
    programs = (STUBBORN, HERE, SLEEP), (STUBBORN, AWAIT_IT, twice)
    outcome, _ = start(*programs, grace=Grace(500, 500))
    assert outcome.signum == signal.SIGINT


def test_a_second_sigterm_does_not_cut_the_grace_short(start):
    twice = "for _ in '12': time.sleep(0.2); os.kill(os.getppid(), 15)"
    rest = "time.sleep(0.3); print('checkpoint written')"
    outcome, sink = start((STUBBORN, "import os, time", twice, rest), grace=Grace(0.1, 20))
    assert outcome.signum == signal.SIGTERM
    assert sink.out == ["[worker 0] checkpoint written"]


def test_a_stopped_worker_can_be_ended(start):
    stops = "os.kill(int(next(pathlib.Path(os.environ['DIR']).glob('pid-*')).name[4:]), 19)"
    programs = (TIDY, HERE, SLEEP), (AWAIT_IT, stops, FAIL)
    _, sink = start(*programs, grace=Grace(20, 20))
    assert sink.out == ["[worker 0] heard SIGTERM"]


def test_without_capture_workers_have_our_streams(start, capfd):
    start("import sys; print('a'); print('b', file=sys.stderr)", captures=False)
    assert capfd.readouterr() == ("a\n", "b\n")


def test_workers_have_no_input(start):
    _, sink = start("import sys; print(repr(sys.stdin.read()))")
    assert sink.out == ["[worker 0] ''"]


def test_workers_have_no_files_of_ours(start):
    _, sink = start("import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])")
    assert sink.out == ["[worker 0] [0, 1, 2]"]


def test_workers_have_just_the_environment_given(start, tmp_path):
    _, sink = start("import os; print({k: v for k, v in os.environ.items() if k != 'LC_CTYPE'})")
    expected = {"DIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    assert sink.out == [f"[worker 0] {expected}"]


def test_a_program_that_is_not_there_is_named():
    sink = Sink()
    outcome = supervise(
        [ProcessPlan(Task("worker", 0), ("/no/such/program",), {})],
        sink=sink,
        signals=Signals(),
        rules=Rules(),
    )
    assert outcome.failure.returncode == 127
    assert sink.err == ["[worker 0] /no/such/program: No such file or directory"]


def test_the_watcher_kills_what_it_remembers(tmp_path):
    watcher = Watcher.start()
    groups = [
        os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", SLEEP], {}, setsid=True)
        for _ in range(2)
    ]
    try:
        for group in groups:
            watcher.remember(group)
        watcher.forget(groups[1])
        watcher.close()
        assert os.waitpid(groups[0], 0)[1] == signal.SIGKILL
        assert is_running(groups[1])
    finally:
        os.kill(groups[1], signal.SIGKILL)
        os.waitpid(groups[1], 0)


def test_a_watcher_that_was_killed_is_no_error(start, monkeypatch):
    start_watcher = Watcher.start

    def killed():
        watcher = start_watcher()
        watcher._process.kill()
        watcher._process.wait()
        return watcher

    monkeypatch.setattr(supervisor.Watcher, "start", killed)
    outcome, sink = start("print('a')")
    assert outcome.failure is None
    assert sink.out == ["[worker 0] a"]
