"""The list of public programs, and the page that says what came of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "measurements_programs.md"


def test_the_page_has_a_row_for_each_program_of_the_list():
    listed = tomllib.loads((HERE / "programs.toml").read_text())
    commits = [programs.pop("commit") for programs in listed.values()]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((name, path) for name, paths in listed.items() for path in paths)
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits)
