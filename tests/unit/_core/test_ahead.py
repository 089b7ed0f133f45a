"""Files that are compiled beside the program: once, waited for, and not longer than it lives."""

from __future__ import annotations

import errno
import os
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replicax._core.handlers import ahead

from helpers import run_python

pytestmark = pytest.mark.skipif(ahead.fcntl is None, reason="nothing is begun on this system")


@pytest.fixture
def command(tmp_path):
    """A compiler that notes its process, and compiles when there is a file `go`."""
    script = tmp_path / "cc"
    lines = [
        "#!/bin/sh",
        f"echo $$ >> {tmp_path}/began",
        f"until [ -e {tmp_path}/go ]; do sleep 0.05; done",  # until the test says so
        '[ "$1" = -o ] && echo compiled > "$2"',
    ]
    script.write_text("\n".join(lines) + "\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return [str(script)]


def waited_for(path):
    """A file's text, once there is one."""
    end = time.monotonic() + 100
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.01)  # another process writes it
    return path.read_text()


def taken(kept):
    with ahead.turn(kept, 100):
        return kept.exists() and kept.read_text()


def test_who_needs_a_file_waits_for_the_one_compiler_that_makes_it(tmp_path, command):
    kept = tmp_path / "kernel.so"
    ahead.begin(command, kept)
    waited_for(tmp_path / "began")
    ahead.begin(command, kept)  # as another worker of this machine does
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(taken, kept) for _ in range(2)]
        assert not kept.exists()
        (tmp_path / "go").touch()
        assert [one.result(100) for one in waiting] == ["compiled\n"] * 2
    assert len((tmp_path / "began").read_text().split()) == 1


def test_a_fork_waits_as_well_and_ends_nothing(tmp_path, command):
    program = f"""
        import os, pathlib, sys
        from replicax._core.handlers import ahead
        folder = pathlib.Path({str(tmp_path)!r})
        kept = folder / "kernel.so"
        ahead.begin({command}, kept)
        if not os.fork():
            sys.exit()  # with all that is done when a program ends
        os.wait()
        child = os.fork()
        if not child:
            with ahead.turn(kept, 100):
                os._exit(not kept.exists())
        (folder / "go").touch()
        print(os.waitpid(child, 0)[1])
    """
    assert run_python(program) == "0\n"


def test_a_compiler_that_fails_leaves_nothing_and_keeps_nobody(tmp_path):
    kept = tmp_path / "kernel.so"
    ahead.begin(["false"], kept)
    assert taken(kept) is False


def test_nobody_waits_longer_than_that(tmp_path, command):
    kept = tmp_path / "kernel.so"
    ahead.begin(command, kept)
    shown = r"another process compiles .*kernel.so for more than 0.01 s"
    with pytest.raises(TimeoutError, match=shown), ahead.turn(kept, 0.01):
        pass
    (tmp_path / "go").touch()
    assert taken(kept)


class Clock:
    """A clock of a test: time is what was slept, and each sleep is a second."""

    def __init__(self, then):
        self.now, self.then = 0, then

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += 1
        self.then(self.now)


def test_what_was_waited_is_no_longer_left(tmp_path, monkeypatch):
    kept = tmp_path / "kernel.so"
    other = ahead._lock(kept)
    assert ahead._take(other)
    monkeypatch.setattr(ahead, "time", Clock(lambda now: now == 4 and other.close()))
    with ahead.turn(kept, 10) as left:
        assert left == 6


def test_a_system_without_locks(tmp_path, command, monkeypatch):
    def no_lock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    kept = tmp_path / "kernel.so"
    monkeypatch.setattr(ahead.fcntl, "flock", no_lock)
    assert taken(kept) is False  # and may compile it
    with pytest.raises(OSError, match="not implemented"):
        ahead.begin(command, kept)
    assert not (tmp_path / "began").exists()


def ended_with_its_program(tmp_path, command, moment):
    """Begin a compiler in a program that ends then; wait until that compiler has ended, too."""
    program = f"""
        import pathlib, time
        from replicax._core.handlers import ahead
        ahead._MOMENT = {moment}
        ahead.begin({command}, pathlib.Path({str(tmp_path)!r}, "kernel.so"))
        began = pathlib.Path({str(tmp_path)!r}, "began")
        while not (began.exists() and began.read_text()):
            time.sleep(0.01)  # until the compiler runs
    """
    run_python(program)
    pid = int((tmp_path / "began").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(1000):  # who it belongs to now takes note of its end
            os.kill(pid, 0)
            time.sleep(0.01)
    assert not (tmp_path / "kernel.so").exists()


def test_a_compiler_ends_with_the_program_that_began(tmp_path, command):
    ended_with_its_program(tmp_path, command, moment=100)


def test_a_compiler_that_is_ended_removes_its_files(tmp_path, command):
    script = Path(command[0])
    own = f"touch {tmp_path}/cc.s\ntrap 'rm {tmp_path}/cc.s; exit 1' TERM\n"
    script.write_text(script.read_text().replace("echo", own + "echo", 1))
    ended_with_its_program(tmp_path, command, moment=100)
    assert not (tmp_path / "cc.s").exists()


def test_a_compiler_that_does_not_end_is_killed(tmp_path, command):
    script = Path(command[0])
    script.write_text(script.read_text().replace("echo", "trap '' TERM\necho", 1))
    ended_with_its_program(tmp_path, command, moment=0.1)


@pytest.mark.parametrize("again", ["begin", "turn"])
def test_what_a_killed_compiler_left_is_in_nobodys_way(tmp_path, command, again):
    kept, left = tmp_path / "kernel.so", tmp_path / "kernel.part"
    left.write_text("half of it")
    (tmp_path / "go").touch()
    if again == "begin":
        ahead.begin(command, kept)
        assert waited_for(kept) == "compiled\n"
    else:
        assert taken(kept) is False
    assert not left.exists()
