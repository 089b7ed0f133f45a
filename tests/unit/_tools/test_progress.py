"""What is shown while a tool runs."""

import io

import pytest
from rich.console import Console

from replicax._tools import progress


def tell(listener):
    listener.begin("mirrored", steps=2)
    listener.report("compiling")
    listener.advance()
    listener.advance()
    listener.end("test accuracy 98.9%")


def test_lines_tell_each_event_but_not_each_step(capsys):
    tell(progress.Lines())
    assert capsys.readouterr().out == (
        "mirrored: 2 steps\nmirrored: compiling\nmirrored: test accuracy 98.9%\n"
    )


def test_lines_tell_how_long_a_long_job_still_takes(capsys, monkeypatch):
    times = iter([0.0, 0.0, 20.0, 40.0, 60.0])  # 20 s for each of ten steps
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    lines = progress.Lines()
    lines.begin("mirrored", steps=10)
    for _ in range(3):
        lines.advance()
    assert capsys.readouterr().out == (
        "mirrored: 10 steps\nmirrored: 2 of 10 steps, about 3 min left\n"
    )


def test_bars_show_job_steps_and_result():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with progress.bars(console) as bars:
        tell(bars)
        bars.begin("prepare", steps=3)
        bars.end("done")
    assert "3/3" in console.file.getvalue()  # the end fills the bar
    last = console.file.getvalue().split("\r")[-1]
    assert "✓ mirrored" in last
    assert "2/2" in last
    assert "test accuracy 98.9%" in last


@pytest.mark.parametrize(("terminal", "kind"), [(True, progress.Bars), (False, progress.Lines)])
def test_bars_are_for_terminals(monkeypatch, terminal, kind):
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal, raising=False)
    with progress.for_stdout() as listener:
        assert type(listener) is kind
