"""How a worker ends, without a cluster: what Python calls at its end is called here."""

import atexit
import sys

import pytest

from replicax._control import EXIT_CODE, _ending
from replicax.experimental._preemption import exit_for_restart


class Line:
    """What is told of the end."""

    def __init__(self, together):
        self.together, self.told = together, []

    def leave(self, *, preempted=False):
        self.told.append("preempted" if preempted else "left")
        return self.together

    def close(self):
        self.told.append("closed")


@pytest.fixture
def end(monkeypatch):
    """End a process that was about to end with a code; give what was told, and the code if any."""

    def run(code, *, together):
        hooks, codes, line = [], [], Line(together)
        monkeypatch.setattr(atexit, "register", hooks.append)
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.setattr(_ending, "end_at_once", codes.append)
        monkeypatch.setattr(_ending, "_flush_files", lambda: None)  # it ends logging, too
        monkeypatch.setattr(_ending, "_noted", [])
        _ending.install_exit_hooks(line, lambda error: False)
        if code != "unknown":
            _ending.note_exit(code)
        hooks[0]()
        return line.told, codes

    return run


def test_an_exception_with_long_lines_ends_with_its_code_and_is_told_in_short(monkeypatch):
    told, hooks, codes, line = [], [], [], Line(together=False)
    line.fail = lambda error: told.append(error)
    monkeypatch.setattr(atexit, "register", hooks.append)
    monkeypatch.setattr(sys, "excepthook", lambda *error: None)
    monkeypatch.setattr(_ending, "end_at_once", codes.append)
    monkeypatch.setattr(_ending, "_flush_files", lambda: None)
    _ending.install_exit_hooks(line, lambda error: False)
    error = ValueError("no luck" + "x" * 5_000_000)
    sys.excepthook(ValueError, error, None)
    hooks[0]()
    assert codes[0] == 1
    assert "no luck" in told[0] and len(told[0]) < 50_000


@pytest.mark.parametrize(
    ("given", "code"), [(None, 0), (0, 0), (3, 3), (256, 0), (True, 1), ("no luck", 1)]
)
def test_who_is_needed_ends_with_its_own_code(end, given, code):
    assert end(given, together=False) == (["left", "closed"], [code])


def test_who_has_left_with_all_others_goes_on_to_end(end):
    assert end(3, together=True) == (["left", "closed"], [])


def test_who_is_preempted_says_so(end, capsys):
    assert end(42, together=False) == (["preempted", "closed"], [42])
    assert "needed" not in capsys.readouterr().err


def test_an_exit_for_a_restart_notes_its_code(monkeypatch):
    monkeypatch.setattr(_ending, "_noted", [])
    with pytest.raises(SystemExit) as raised:
        exit_for_restart()
    assert _ending._noted == [raised.value.code] == [42]


def test_nobodys_exit_is_replaced(end):
    before = sys.exit
    end(3, together=True)
    assert sys.exit is before


def test_with_an_unknown_code_it_is_that_of_the_watchdog(end, capsys):
    assert end("unknown", together=False) == (["left", "closed"], [EXIT_CODE])
    assert "this worker has ended while others needed it" in capsys.readouterr().err
