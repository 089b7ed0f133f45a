"""Tables, compared character by character."""

from __future__ import annotations

from replicax._tools.compare import _table

HEADERS = ["name", "test\nloss"]
ROWS = [["a", "1.25"], ["longer", "10.5"]]


def test_an_aligned_table():
    assert _table.aligned(HEADERS, ROWS).split("\n") == [
        "        test",
        "name    loss",
        "------  ----",
        "a       1.25",
        "longer  10.5",
    ]


def test_more_columns_can_hold_words():
    assert _table.aligned(["n", "m"], [["a", "b"], ["cc", "ddd"]], left=2).split("\n") == [
        "n   m",
        "--  ---",
        "a   b",
        "cc  ddd",
    ]


def test_a_markdown_table():
    assert _table.markdown(HEADERS, ROWS).split("\n") == [
        "| name | test loss |",
        "| :-- | --: |",
        "| a | 1.25 |",
        "| longer | 10.5 |",
    ]


def test_a_table_without_rows():
    assert _table.aligned(["a", "b"], []) == "a  b\n-  -"
