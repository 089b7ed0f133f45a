"""Workers of one machine: the first of them compiles, and at the second start nobody does."""

from __future__ import annotations

import pytest

import replicax as rx

from . import starts
from helpers import LEAN

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

PROGRAMS = 8  # `fit` has two shapes; evaluate, run, a function; three checksums of state


def test_the_second_start_of_two_workers_compiles_none_of_their_programs(tmp_path):
    env = {**LEAN, "RX_COMPILATION_CACHE": str(tmp_path)}

    def start():
        found = rx.launch.run(starts.start, 2, devices_per_worker=1, timeout=300, env=env)
        files = sorted(tmp_path.glob("*/of-all-workers/*"))
        return *zip(*found, strict=True), [(file, file.read_bytes()) for file in files]

    (results, totals, asked, files), again = start(), start()
    assert len(files) == PROGRAMS
    assert results[0] == results[1]
    assert again[:2] == (results, totals)
    assert again[3] == files
    # The second worker loads them at both starts.
    assert [first - second for first, second in zip(asked, again[2], strict=True)] == [PROGRAMS, 0]
