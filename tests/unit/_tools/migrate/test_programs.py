"""What IPython adds to Python is hidden, and shown again."""

import ast

import pytest

from replicax._tools.migrate.programs import piece_of

CELLS = [
    "!pip install tensorflow\nimport os",
    "%matplotlib inline\nx = 1\n",
    "x = 1\n  \nif x:\n    !echo {x}\n    %cd /tmp",
    "files = !ls\nfiles[0]",
    "%time y = f(x)",
    "x = %sql select 1",
    "help?\nstr.split??\n?int",
    "!one \\\n  two \\\n  three\nx = 2",
    "%%time\nimport os",
    "%%capture out\n!ls\nx = 1",
    "%%writefile a/main.py\nimport os\n",
    "width = (10\n  % 3\n  != 1)",
    "print('%s'\n  %(3))",
    "",
]


@pytest.mark.parametrize("source", CELLS)
def test_a_cell_comes_back_as_it_was(source):
    cell = piece_of(source)
    assert cell is not None
    tree = ast.parse(cell.text)
    assert cell.source(cell.text) == source
    assert len(cell.text.splitlines()) + cell.offset == len(source.splitlines())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "pip"]


@pytest.mark.parametrize("source", ["%%bash\nls", "%%html\n<b>", "%%writefile notes.txt\nhello"])
def test_other_cells_are_left_alone(source):
    assert piece_of(source) is None


def test_a_written_file_is_a_program_of_its_own():
    cell = piece_of("%%writefile main.py\nimport os\n")
    assert cell is not None
    assert (cell.alone, cell.offset, cell.text) == (True, 1, "import os\n")


def test_the_backend_in_a_magic():
    cell = piece_of("%env KERAS_BACKEND=tensorflow\n%env OTHER=tensorflow\n")
    assert cell is not None
    assert cell.source(cell.text) == "%env KERAS_BACKEND=jax\n%env OTHER=tensorflow\n"
