"""The list of public programs, and the page that says what came of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "measurements_programs.md"


def test_the_page_has_a_row_for_each_program_of_the_list():
    listed = tomllib.loads((HERE / "programs.toml").read_text())["program"]
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted((one["repository"], one["path"]) for one in listed)
    assert all(re.fullmatch("[0-9a-f]{40}", one["commit"]) for one in listed)
