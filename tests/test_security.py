"""docs/security.md names every place where bytes could become code, and all that listens."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "replicax"
PAGE = (ROOT / "docs" / "security.md").read_text()

PICKLES = ("pickle", "cloudpickle", "dill", "marshal", "joblib", "_pickle")
READERS = {
    *(f"{module}.{name}" for module in PICKLES for name in ("load", "loads", "Unpickler")),
    *("eval", "exec", "shelve.open", "numpy.load", "jax.export.deserialize"),
    *("runpy.run_path", "runpy.run_module", "code.interact", "imp.load_source"),
    *("ctypes.CDLL", "ctypes.PyDLL", "ctypes.cdll.LoadLibrary"),
    *("importlib.util.spec_from_file_location", "importlib.machinery.ExtensionFileLoader"),
    *("keras.models.load_model", "keras.saving.load_model"),
    *("keras.saving.deserialize_keras_object", "keras.models.model_from_json"),
    "jax.experimental.serialize_executable.deserialize_and_load",
}
LISTENERS = {
    *("socket.create_server", "socket.AF_UNIX", "ray.init"),
    *("jax.distributed.initialize", "jax.profiler.start_server"),
    *(
        "http.server.HTTPServer",
        "http.server.ThreadingHTTPServer",
        "socketserver.TCPServer",
        "multiprocessing.connection.Listener",
    ),
}


# They connect to a Unix socket, ask what kind one is, or look for a free port.
DO_NOT_LISTEN = {"_tools/doctor/facts.py", "_ps/hosts/given_cluster.py", "_net/requests.py"}
TYPES = ("annotation", "returns")  # what they name is not called


def named(source):
    """The full names of all that a source refers to, whatever it has called it."""
    tree = ast.parse(source)
    aliases = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for one in node.names:
                top = one.name.partition(".")[0]
                aliases[one.asname or top] = one.name if one.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for one in node.names:
                aliases[one.asname or one.name] = f"{node.module}.{one.name}"
    types = [getattr(node, field, None) for node in ast.walk(tree) for field in TYPES]
    skipped = {id(part) for one in types if isinstance(one, ast.expr) for part in ast.walk(one)}
    found = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            first, dot, rest = ast.unparse(node).partition(".")
            found.add(aliases.get(first, first) + dot + rest)
    return found


def places(wanted):
    """Each file of the source, and what it refers to of these names."""
    return {
        (str(path.relative_to(SOURCE)), name)
        for path in SOURCE.rglob("*.py")
        for name in named(path.read_text()) & wanted
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import pickle\npickle.loads(b'')", "pickle.loads"),
        ("import pickle as p\nmap(p.loads, [])", "pickle.loads"),
        ("from pickle import loads as read\nread(b'')", "pickle.loads"),
        ("import pickle\nclass A(pickle.Unpickler): ...", "pickle.Unpickler"),
        ("import numpy as np\nnp.load('x')", "numpy.load"),
        ("import jax\njax.export.deserialize(b'')", "jax.export.deserialize"),
        ("exec('')", "exec"),
    ],
)
def test_a_reader_is_found_by_any_name(source, name):
    assert named(source) & READERS == {name}


def test_a_method_of_that_name_is_none():
    assert not named("import re\nre.compile('')\nmodel.compile()\ntable.load({})") & READERS


def test_the_page_lists_every_place_where_bytes_could_become_code():
    rows = re.findall(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", PAGE, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == places(READERS)


def test_the_page_lists_every_file_that_listens():
    part = PAGE.partition("## What listens where")[2].partition("\n## ")[0]
    listed = set(re.findall(r"\| `([\w/]+\.py)` \|", part))
    assert listed == {path for path, _ in places(LISTENERS)} - DO_NOT_LISTEN
