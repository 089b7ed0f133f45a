"""`replicax migrate` on files: what it says, what it writes, what it leaves alone."""

import json
import sys
from pathlib import Path

import pytest

from replicax._tools import commands
from replicax.launch import _cli

from helpers import run_python

SCRIPT = """\
# A program.
import tensorflow as tf
from tensorflow.train import ClusterSpec   # kept

strategy = tf.distribute.OneDeviceStrategy("CPU:0")
print(strategy.num_replicas_in_sync, ClusterSpec({}).jobs)
"""
NOTEBOOK = {
    "cells": [
        {"cell_type": "markdown", "metadata": {}, "source": ["import tensorflow as tf"]},
        {
            "cell_type": "code",
            "execution_count": 3,
            "metadata": {"id": "a"},
            "outputs": [{"name": "stdout", "output_type": "stream", "text": ["2.21\\n"]}],
            "source": ["!pip install tensorflow\n", "import tensorflow as tf\n", "import keras"],
        },
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": "tf.Session()  # é"},
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "source": ["%%writefile main.py\n", "import tensorflow as tf\n"],
        },
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["%%bash\n", "ls ("]},
        {"cell_type": "code", "metadata": {}, "outputs": [], "source": ["  import tensorflow\n"]},
    ],
    "metadata": {"kernelspec": {"name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


def migrate(*paths, **options):
    request = {"paths": [str(path) for path in paths], "diff": False, "write": False}
    how = {"run": False, "steps": 3, "replicas": 2, "time_limit": 100, "args": []}
    return commands.main(
        ["migrate", json.dumps({**request, **how, "backup": False, "json": None, **options})]
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(
    ("file", "text", "fix"),
    [("notes.txt", "", "no .py or .ipynb"), ("broken.ipynb", '{"cells": [', "Jupyter")],
)
def test_what_cannot_be_migrated(file, text, fix, tmp_path, capsys):
    (tmp_path / file).write_text(text)
    migrate(tmp_path)
    assert fix in capsys.readouterr().err


def test_a_backup_without_changes_is_refused(script, capsys):
    assert migrate(script, backup=True) == 2
    assert "--write" in capsys.readouterr().err


def test_a_report_changes_nothing(script, capsys, tmp_path):
    assert migrate(script, json=str(tmp_path / "names.json")) == 0
    said = capsys.readouterr().out
    assert "tf.distribute.OneDeviceStrategy" in said
    assert "An unknown device is an error" in said
    assert "2 of 2 names supported (100 %): 1 with the same meaning, 1 with another." in said
    assert "runs as it is; 2 of 2 calls checked (100 %)" in said
    assert "1 file to rewrite" in said
    assert script.read_text() == SCRIPT
    data = json.loads((tmp_path / "names.json").read_text())
    assert data["counts"] == {"same": 1, "changed": 1, "missing": 0}
    (same,) = [entry for entry in data["names"] if entry["kind"] == "same"]
    assert same["name"] == "tf.train.ClusterSpec"
    assert [place["line"] for place in same["places"]] == [3, 6]


def test_the_rewritten_program_runs(script, capsys):
    assert migrate(script, write=True, backup=True) == 0
    said = capsys.readouterr().out
    assert "-import tensorflow as tf\n" in said
    assert "+import replicax.tf as tf\n" in said
    wanted = SCRIPT.replace("import tensorflow as", "import replicax.tf as")
    assert script.read_text() == wanted.replace("from tensorflow.", "from replicax.tf.")
    assert (script.parent / "train.py.orig").read_text() == SCRIPT
    assert run_python(script.read_text()).split() == ["1", "[]"]
    assert migrate(script, write=True) == 0
    assert "0 files rewritten." in capsys.readouterr().out


@pytest.mark.parametrize(
    "data",
    [
        "\ufeff# BOM\r\nimport tensorflow as tf\r\n".encode(),
        "# -*- coding: latin-1 -*-\nimport tensorflow as tf  # é\n".encode("latin-1"),
        b"import tensorflow as tf",
        b"import tensorflow as tf\r\n\tx = 1\r\n".replace(b"\tx", b"x"),
    ],
)
def test_bytes_around_the_import_stay(tmp_path, data):
    path = tmp_path / "a.py"
    path.write_bytes(data)
    migrate(path, write=True)
    assert path.read_bytes() == data.replace(b"tensorflow", b"replicax.tf")


@pytest.mark.parametrize("data", [b"print(1)\r\n\r\n", b"\xef\xbb\xbfimport os\n", b""])
def test_a_file_without_tensorflow_is_not_touched(tmp_path, data):
    path = tmp_path / "a.py"
    path.write_bytes(data)
    before = path.stat().st_mtime_ns
    assert migrate(path, write=True) == 0
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (data, before)


@pytest.mark.parametrize("layout", [{"indent": 1, "ensure_ascii": False}, {}])
def test_a_notebook_keeps_everything_else(tmp_path, layout, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("a.ipynb")
    text = json.dumps(NOTEBOOK, **layout) + "\n"
    path.write_text(text, encoding="utf-8")
    assert migrate(path, write=True) == 1  # tf.Session
    said = capsys.readouterr().out
    assert "a.ipynb[3]:1" in said
    assert "a.ipynb[6]:1 This cell is no Python 3" in " ".join(said.split())
    wanted = text.replace('"import tensorflow as tf\\n"', '"import replicax.tf as tf\\n"')
    wanted = wanted.replace('"import keras"', '"import replicax.tf.keras as keras"')
    assert path.read_text(encoding="utf-8") == wanted
    assert json.loads(wanted)["cells"][0] == NOTEBOOK["cells"][0]


def test_a_folder(tmp_path, capsys):
    (tmp_path / "good.py").write_text(SCRIPT)
    (tmp_path / "old.py").write_text("print 'Python 2'\n")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "no.py").write_text(SCRIPT)
    assert migrate(tmp_path) == 1
    said = capsys.readouterr()
    assert "1 could not be read." in said.out
    assert f"not read: {tmp_path}/old.py:1" in (said.err)
    assert "no.py" not in said.out


PROGRAMS = {
    "train.py": "from lib import nets\nnets.build().fit(1)\n",
    "old.py": "import tensorflow as tf\nif __name__ == '__main__':\n    tf.Session()\n",
    "lib/__init__.py": "",
    "lib/nets.py": "import tensorflow as tf\n\ndef build():\n    return tf.keras.Sequential()\n",
    "lib/spare.py": "import tensorflow as tf\n\ndef f():\n    tf.raw_ops.Abs(x=1)\n",
    "score.py": "import tensorflow as tf\ntf.keras.Sequential([1]).predict_classes(2)\n",
    "guess.py": "from tensorflow import keras\n\ndef main(x):\n    x.fit()\n\nmain({}[1])\n",
    "test_train.py": "import train\nimport tensorflow as tf\ntf.abs(1)\n",
}


def test_there_is_one_verdict_for_each_program_not_for_each_file(tmp_path, capsys):
    for name, text in PROGRAMS.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert migrate(tmp_path, json=str(tmp_path / "found.json")) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "lib/spare.py: not part of a program lib/spare.py:4 `tf.raw_ops.Abs`" in said
    found = json.loads((tmp_path / "found.json").read_text())
    programs = {Path(one["program"]).name: one for one in found["programs"]}
    assert {name: one["verdict"] for name, one in programs.items()} == {
        "train.py": "runs as it is",
        "old.py": "stops here",
        "score.py": "needs these changes",
        "guess.py": "runs as it is",
    }
    files = {Path(file).name for file in programs["train.py"]["files"]}
    assert files == {"train.py", "nets.py", "__init__.py"}
    assert {name: (one["checked"], one["calls"]) for name, one in programs.items()} == {
        "train.py": (2, 2),
        "old.py": (1, 1),
        "score.py": (2, 2),
        "guess.py": (0, 1),
    }
    assert "2 of 4 programs fully supported; 1 of them with calls that were not checked." in said


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.py", "def f(:", "Only Python 3"),
        ("a.ipynb", "{", "Cannot read "),
        ("a.py", "# coding: nonsense\n", "Cannot read "),
        ("a.txt", "", "Cannot migrate"),
    ],
)
def test_what_cannot_be_read(tmp_path, capsys, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    assert migrate(path) == 2
    assert message in capsys.readouterr().err


def test_syntax_that_libcst_does_not_know(script, monkeypatch, capsys):
    import libcst

    from replicax._tools.migrate import imports

    def fail(text):
        raise libcst.ParserSyntaxError("no", lines=[text], raw_line=1, raw_column=0)

    monkeypatch.setattr(imports.cst, "parse_module", fail)
    assert migrate(script) == 2
    assert "LibCST cannot parse" in capsys.readouterr().err


def test_without_libcst(script, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "libcst", None)
    assert migrate(script) == 2
    assert "pip install 'replicax[migrate]'" in capsys.readouterr().err


def test_the_command_starts_it(monkeypatch, tmp_path):
    started = []
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(_cli, "run_child", lambda *call: started.append(call) or 5)
    of_it = ["--", "--epochs", "1"]
    assert _cli.main(["migrate", "a.py", "folder", "--write", "--json", "x", *of_it]) == 5
    ((arguments, environment),) = started
    assert arguments[1:4] == ["-m", "replicax._tools.commands", "migrate"]
    assert json.loads(arguments[4]) == {
        "paths": ["a.py", "folder"],
        "diff": False,
        "write": True,
        "backup": False,
        "json": "x",
        "run": False,
        "steps": 3,
        "replicas": 2,
        "time_limit": 120,
        "args": ["--epochs", "1"],
    }
    assert (environment["KERAS_BACKEND"], environment["JAX_PLATFORMS"]) == ("jax", "cpu")


HEAD = "import tensorflow as tf\nx = "


def test_what_the_parsers_can_just_read_is_judged(tmp_path):
    (tmp_path / "terms.py").write_text(HEAD + " + ".join("1" * 250) + " + tf.abs(1)")
    (tmp_path / "calls.py").write_text(HEAD + "tf.data.Dataset.range(3)" + ".batch(2)" * 150)
    assert migrate(tmp_path, json=str(tmp_path / "found.json")) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["unread"] == found["unchecked"] == []


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("brackets.py", HEAD + "[" * 100_000 + "]" * 100_000),
        ("terms.py", HEAD + " + ".join("1" * 20_000)),
        ("terms_for_libcst.py", HEAD + " + ".join("1" * 900)),  # Python itself reads these
        ("attributes.py", HEAD + "tf" + ".a" * 20_000),
        ("signs.py", HEAD + "-" * 100_000 + "1"),
        ("digits.py", HEAD + "9" * 100_000),
        ("zero_byte.py", "import tensorflow\0 as tf"),
        ("bytes.py", bytes(range(256)) * 100),
        ("utf16.py", "import tensorflow as tf".encode("utf-16")),
        ("no_text.py", b"# -*- coding: hex -*-\nimport tensorflow as tf\n"),
        ("nested.ipynb", "[" * 200_000 + "]" * 200_000),
        ("list.ipynb", "[]"),
        ("surrogate.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "x\ud800"}]})),
    ],
    ids=lambda value: value if isinstance(value, str) and value[-3:] in (".py", "ynb") else "",
)
def test_a_file_that_no_parser_reads_is_named_and_the_others_are_rewritten(
    name, content, tmp_path, capsys
):
    hostile, good = tmp_path / name, tmp_path / "good.py"
    raw = content.encode() if isinstance(content, str) else content
    hostile.write_bytes(raw)
    good.write_text("import tensorflow as tf\n")
    assert migrate(tmp_path, write=True) == 1
    assert name in capsys.readouterr().err
    assert hostile.read_bytes() == raw
    assert good.read_text() == "import replicax.tf as tf\n"
    assert migrate(hostile) == 2
    assert name in capsys.readouterr().err
