"""The list of public programs, and the page that says what came of them."""

import re
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "measurements_programs.md"


def test_the_page_names_programs_of_the_list_and_counts_the_others():
    listed = tomllib.loads((HERE / "programs.toml").read_text())
    commits = [programs.pop("commit") for programs in listed.values()]
    text = PAGE.read_text()
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \|", text, re.MULTILINE)
    known = {(name, path) for name, paths in listed.items() for path in paths}
    assert set(rows) <= known
    assert f"{len(known) - len(rows)} of the {len(known)} programs" in text
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in commits)
