"""`replicax top`: what it makes of metrics, and what it says if there are none."""

import json
import time

import pytest

from replicax._processes.metrics import Target, published_at
from replicax._processes.prometheus import read, series, write
from replicax._tools.commands import main
from replicax._tools.top import by_worker, state

RUN = """
replicax_worker_up{worker="10"} 1
replicax_worker_up{worker="9"} 0
replicax_worker_up{worker="chief 0"} 1
replicax_worker_exit_code{worker="9"} -9
replicax_worker_info{worker="10",host="node1",pid="4711"} 1
replicax_worker_restarts_total{worker="10"} 2
replicax_steps_total{worker="10"} 1234
replicax_steps_per_second{worker="10"} 3.5
replicax_examples_per_second{worker="10"} 5311.6
replicax_waited_ratio{worker="10"} 0.25
replicax_closures_total{worker="9"} 17
replicax_staleness_updates_sum{worker="chief 0"} 3
replicax_staleness_updates_count{worker="chief 0"} 2
replicax_queued_closures{worker="chief 0"} 7
"""


def top(capsys, source):
    return main(["top", json.dumps({"source": str(source), "once": True})]), *capsys.readouterr()


def test_a_line_for_each_worker_in_order(tmp_path, capsys):
    (tmp_path / "a.prom").write_text(RUN)
    code, out, err = top(capsys, tmp_path / "a.prom")
    assert (code, err) == (0, "")
    lines = [line.split() for line in out.splitlines()]
    assert " ".join(lines[0]) == "worker host pid state step examples/s waited restarts"
    assert lines[1] == ["9", "failed", "(-9)", "17"]
    assert lines[2] == ["10", "node1", "4711", "training", "1,234", "5,312", "25%", "2"]
    assert lines[3] == ["chief", "0", "running"]
    assert lines[4] == ["staleness", "1.5", "·", "queue", "7"]


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"worker_up": 1}, "running"),
        ({"worker_up": 1, "steps_total": 3, "steps_per_second": 0}, "idle"),
        ({"worker_up": 0, "worker_exit_code": 0}, "ended"),
        ({"worker_up": 0, "worker_exit_code": 42}, "preempted"),
        ({"worker_up": 0, "worker_exit_code": 143}, "terminated"),
        # Of a program that no `replicax run` has started.
        ({"last_report_timestamp_seconds": 0, "steps_total": 3}, "silent"),
        (
            {
                "last_report_timestamp_seconds": time.time() + 3600,
                "steps_total": 3,
                "steps_per_second": 1,
            },
            "training",
        ),
    ],
)
def test_a_worker_s_state_in_a_word(told, word):
    text = write({series(f"replicax_{name}"): value for name, value in told.items()})
    (worker,) = by_worker(read(text)).values()
    assert state(worker) == word


def test_it_reads_what_a_run_serves(capsys):
    with published_at(Target.of("0")) as (_, target):
        code, _, err = top(capsys, target.argument)
        assert (code, "first worker" in err) == (1, True)


def test_nothing_there_is_said_with_what_to_do(tmp_path, capsys):
    for source in (tmp_path / "none.prom", "1"):
        code, out, err = top(capsys, source)
        assert (code, out) == (1, "")
        assert f"--metrics {source}" in err
