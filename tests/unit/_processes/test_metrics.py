"""Metrics of a run: Prometheus' text, who reports what, and where it is read."""

import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import replicax as rx
from replicax._processes import prometheus
from replicax._processes.child import RX_RESTART, ProcessPlan
from replicax._processes.metrics import Metrics, Target, published_at
from replicax._processes.output import Reports
from replicax._processes.prometheus import MARK, read, series, write
from replicax.cluster_resolver import Task

from exposition import strict

STEPS, UP = prometheus.STEPS, prometheus.UP
RESTARTS, EXIT_CODE = prometheus.RESTARTS, prometheus.EXIT_CODE


def planned(job="worker", index=0, **options):
    return ProcessPlan(Task(job, index), (), {RX_RESTART: "0"}, **options)


def file_of(plan):
    return Path(plan.env["RX_METRICS_FILE"])


def get(place):
    with urllib.request.urlopen(place, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_every_metric_has_a_help_and_a_type_and_names_of_counters_end_in_total():
    samples = {series(name, worker=0): 1 for name in prometheus.METRICS if "staleness" not in name}
    samples |= {series(f"{prometheus.STALENESS}_{part}", worker=0): 2 for part in ("sum", "count")}
    assert strict(write(samples)) == samples
    assert write({}) == ""


@pytest.mark.parametrize("host", ['a"b', "a\\", "a\nb", "a\\nb", "a}b 1", "ä,=", ""])
def test_labels_are_read_as_they_were_written(host):
    samples = {series(prometheus.INFO, host=host, pid=1): 1.0, series(STEPS): 1234567890.0}
    text = write(samples)
    strict(text)
    assert read(text) == samples


@pytest.mark.parametrize("value", [0, 1.5, 1e300, 1e-9, float("nan"), float("inf"), -15])
def test_values_are_read_as_they_were_written(value):
    ((_, found),) = read(write({series(prometheus.STEP_RATE): value})).items()
    assert str(found) == str(float(value))


def test_lines_of_other_programs_are_not_in_the_way():
    text = "# HELP a b 1\n# a comment 2\nnode_load1 0.5 1700000000\n\nbroken{ 3\nimport os\n"
    assert read(text) == {("node_load1", ()): 0.5}


def test_a_worker_s_report_has_the_label_of_its_task(tmp_path):
    known = Metrics(tmp_path)
    for job, index in (("worker", 1), ("chief", 0)):
        plan = known.starting(planned(job, index))
        known.started(plan, 7)
        file_of(plan).write_text(
            write({series(STEPS): 5, series("replicax_closures_total", worker=3): 2})
        )
    found = strict(known.text())
    assert found[series(STEPS, worker=1)] == found[series(STEPS, worker="chief 0")] == 5
    assert found[series("replicax_closures_total", worker=3)] == 2  # which it has named itself


def test_a_restart_is_counted_and_forgets_what_was_reported(tmp_path):
    known = Metrics(tmp_path)
    plan = known.starting(planned())
    known.started(plan, 7)
    file_of(plan).write_text(write({series(STEPS): 5, series(prometheus.STEP_RATE): 2}))
    assert strict(known.text())[series(prometheus.STEP_RATE, worker=0)] == 2
    known.ended(plan, -9)
    found = strict(known.text())
    assert series(prometheus.STEP_RATE, worker=0) not in found  # it does no steps now
    assert [found[series(name, worker=0)] for name in (STEPS, UP, EXIT_CODE)] == [5, 0, -9]
    plan = known.starting(plan)
    known.started(plan, 8)
    found = strict(known.text())
    assert series(STEPS, worker=0) not in found
    assert [found[series(name, worker=0)] for name in (UP, RESTARTS, EXIT_CODE)] == [1, 1, -9]
    assert series(prometheus.INFO, worker=0, host=socket.gethostname(), pid=8) in found


def test_a_worker_elsewhere_reports_in_pieces_and_names_its_host(tmp_path):
    known = Metrics(tmp_path)
    plan = known.starting(planned(order="there", host="node1"))
    known.started(plan, 7)
    assert "RX_METRICS_FILE" not in plan.env
    assert not any("pid" in dict(labels) for _, labels in strict(known.text()))  # it is ssh's
    plan.heard(write({series(STEPS): 5}).encode())
    plan.heard(write({series(prometheus.INFO, host="node1", pid=3): 1}).encode())
    plan.heard(write({series(STEPS): 6}).encode())
    found = strict(known.text())
    assert found[series(STEPS, worker=0)] == 6
    assert found[series(prometheus.INFO, worker=0, host="node1", pid=3)] == 1


@pytest.mark.parametrize("size", range(1, 14))
def test_reports_are_taken_out_wherever_a_stream_is_cut(size):
    text = b"10%\r" + MARK + b"a 1\n" + MARK + b"20%\n" + MARK + b"b" + MARK + b"end\x1e"
    reports, shown, found = Reports(), b"", []
    for begin in range(0, len(text) + size, size):  # the last piece is empty
        rest, some = reports.take(text[begin : begin + size])
        shown, found = shown + rest, found + some
    assert (shown, found) == (b"10%\r20%\nend\x1e", [b"a 1\n", b"b"])


def test_a_mark_without_a_partner_loses_nothing():
    reports = Reports()
    shown = [reports.take(data)[0] for data in (b"a" + MARK + b"b\n", b"c\n", b"")]
    assert b"".join(shown) == b"ab\nc\n"


def test_a_port_gives_the_metrics_and_nothing_else():
    with published_at(Target.of("0")) as (known, target):
        known.started(planned(), 7)
        kind, text = get(target.place)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        assert strict(text)[series(UP, worker=0)] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(target.place.replace("metrics", "other"))
        assert target.host == "127.0.0.1"
    with pytest.raises(urllib.error.URLError):
        get(target.place)


def test_a_port_that_is_used_is_refused():
    with (
        published_at(Target.of("0")) as (_, target),
        pytest.raises(rx.errors.UsageError, match=str(target.port)),
        published_at(target),
    ):
        pass


def test_a_file_is_replaced_as_a_whole_and_has_the_end(tmp_path):
    path = tmp_path / "train.prom"
    with published_at(Target.of(str(path))) as (known, _):
        known.started(planned(), 7)
        reader = path.open()
    with reader:
        assert strict(reader.read()) == {}  # that of the beginning, which it had opened
    assert strict(path.read_text())[series(UP, worker=0)] == 1
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_in_no_folder_is_refused(tmp_path):
    with (
        pytest.raises(rx.errors.UsageError, match="none"),
        published_at(Target.of(str(tmp_path / "none" / "a.prom"))),
    ):
        pass


def test_a_number_is_a_port_and_what_has_no_port_is_a_file():
    targets = [Target.of(text) for text in ("9100", "0.0.0.0:80", "a/b:1/c", "9100.prom", "a:b")]
    assert [(one.host, one.port, one.file) for one in targets] == [
        ("127.0.0.1", 9100, ""),
        ("0.0.0.0", 80, ""),
        ("", 0, "a/b:1/c"),
        ("", 0, "9100.prom"),
        ("", 0, "a:b"),
    ]
    assert [one.argument for one in targets[:3]] == ["9100", "0.0.0.0:80", "a/b:1/c"]
    for wrong in ("65536", ":9100", "[::1]:9100", "http://localhost:9100/metrics"):
        with pytest.raises(rx.errors.UsageError, match=re.escape(wrong)):
            Target.of(wrong)
