"""`replicax compare` and `devices`: exit codes, and what goes to which stream."""

import json
import webbrowser

import pytest

from replicax import report
from replicax._tools.commands import main


@pytest.fixture
def run(monkeypatch, tmp_path, capsys, sample):
    """Run `compare` with a result, or an exception, in place of the work."""

    def run(outcome, **options):
        def stand_in(settings, listener):
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(report, "compare", stand_in)
        code = main(["compare", json.dumps({"output": str(tmp_path / "out")} | options)])
        return code, *capsys.readouterr()

    return run


def test_equal_weights_are_success(run, sample, tmp_path):
    code, out, err = run(sample())
    assert (code, err) == (0, "")
    assert "mirrored    CPU:0-1 each" in out
    assert f"Written to {tmp_path / 'out'}: report.html, compare.json" in out


def test_different_weights_are_failure_after_all_is_written(run, sample, tmp_path):
    code, out, err = run(sample(difference=0.5))
    assert code == 1
    assert "mirrored" in out
    assert err.startswith("replicax compare: error: ")
    assert (tmp_path / "out" / "compare.json").exists()


@pytest.mark.parametrize("outcome", [True, False, webbrowser.Error("none")])
def test_the_page_is_opened_or_it_is_said_where_it_is(run, sample, tmp_path, monkeypatch, outcome):
    def stand_in(address):
        opened.append(address)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    opened = []
    monkeypatch.setattr(webbrowser, "open", stand_in)
    code, _, err = run(sample(), open=True)
    page = tmp_path / "out" / "report.html"
    assert (code, opened) == (0, [page.as_uri()])
    said = f"replicax compare: found no browser to open {page} in\n"
    assert err == ("" if outcome is True else said)


def test_settings_are_checked(run, sample):
    code, _, err = run(sample(), epochs=0)
    assert code == 2
    assert "`epochs`" in err


def test_the_folder_is_checked_before_the_work(run, tmp_path):
    (tmp_path / "out").write_text("mine")
    code, _, err = run(AssertionError("worked first"))
    assert code == 2
    assert "--output" in err


def test_devices_as_text(capsys):
    assert main(["devices", '{"replicas": 2, "json": false}']) == 0
    assert 'MirroredStrategy(["CPU:0", "CPU:1"])' in capsys.readouterr().out


def test_devices_as_json(capsys):
    assert main(["devices", '{"replicas": null, "json": true}']) == 0
    assert len(json.loads(capsys.readouterr().out)["machine"]["devices"]) == 8
