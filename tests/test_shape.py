"""Sizes of what a reader meets, and private names. Imports: test_layers.py."""

import ast
import functools
import re
from collections import Counter, defaultdict
from pathlib import Path

from test_layers import runtime_nodes

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "replicax"
FILES = sorted(SRC.rglob("*.py"))

LINES_PER_FUNCTION = 60
LINES_PER_FILE = 500
FILES_PER_FOLDER = 25

# The file that exists to hold what Keras does not publish.
MAY_TOUCH_PRIVATE = {SRC / "_keras" / "_compat.py"}
# Folders with more files. These numbers may only fall.
WIDE = {"tf": 46}
# All of it in one file: a list of small functions, and a table of names.
LONG_BY_DESIGN = {SRC / "_keras" / "_compat.py", SRC / "tf" / "_names.py"}
# Its 17 arguments, as many as `replicax run` has options, take 75 lines to declare and describe.
LONG_DOCSTRINGS = {(SRC / "launch" / "_function.py", "run")}
NAMEDTUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}
MAY_READ_ENVIRON = {"cluster_resolver", "launch", "_core/env.py", "testing", "report"}
# What `tf.distribute.TPUStrategy` has beside what all strategies have.
OF_ONE_STRATEGY = {
    "experimental_assign_to_logical_device",
    "experimental_replicate_to_logical_devices",
    "experimental_split_to_logical_devices",
}
BESIDE_THE_STRATEGIES = {"_base.py", "_extended.py", "_current.py"}

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def where(path, node):
    return f"{path.relative_to(ROOT)}:{node.lineno}"


@functools.cache
def tree(path):
    """The syntax of a file. Every process of the tests imports this module, and few need it."""
    return ast.parse(path.read_text())


def nodes(kind, files=FILES):
    """Yield (path, node) for every node of `kind` in the source."""
    for path in files:
        yield from ((path, node) for node in ast.walk(tree(path)) if isinstance(node, kind))


def nodes_at_run_time(kind):
    """Yield (path, node) for what is not there for the type checker only."""
    for path in FILES:
        found = runtime_nodes(tree(path))
        yield from ((path, node) for node in found if isinstance(node, kind))


def report(faults):
    assert not faults, "\n" + "\n".join(faults)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def length(path, function):
    lines = function.end_lineno - function.lineno + 1
    if (path, function.name) in LONG_DOCSTRINGS:
        words = function.body[0]
        lines -= words.end_lineno - words.lineno + 1
    return lines


def names_of_bases(kind):
    """Return the last word of each base: `Base`, `module.Base` and `Base[T]` are all `Base`."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in kind.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def test_no_function_is_long():
    report(
        [
            f"{where(path, function)}: {function.name} has {length(path, function)} lines"
            for path, function in nodes(Function)
            if length(path, function) > LINES_PER_FUNCTION
        ]
    )


def test_no_file_is_long():
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    report(
        [
            f"{path.relative_to(ROOT)}: {count} lines"
            for path, count in lines.items()
            if count > LINES_PER_FILE and path not in LONG_BY_DESIGN
        ]
    )


def test_no_folder_is_wide():
    files = Counter(path.parent.relative_to(SRC).as_posix() for path in FILES)
    report(
        [
            f"{folder}: {count} files"
            for folder, count in files.items()
            if count > WIDE.get(folder, FILES_PER_FOLDER)
        ]
    )


def test_a_strategy_defines_only_how_it_is_made():
    faults = []
    files = [path for path in FILES if path.parent == SRC / "strategies"]
    for path, kind in nodes(ast.ClassDef, files):
        if path.name in BESIDE_THE_STRATEGIES or "Strategy" not in " ".join(names_of_bases(kind)):
            continue
        methods = {item.name for item in kind.body if isinstance(item, Function)} - {"__init__"}
        allowed = OF_ONE_STRATEGY if kind.name == "TPUStrategy" else set()
        if methods - allowed:
            faults.append(f"{where(path, kind)}: {kind.name} defines {sorted(methods)}")
    report(faults)


def test_what_is_left_to_do_is_an_issue_not_a_comment():
    # Spelt so that this file does not hold what it looks for.
    reminder = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X])\b")
    report(
        [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
            for path in FILES
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if reminder.search(line)
        ]
    )


def package_of(path):
    return path.relative_to(SRC).parts[0]


def private_names_by_package():
    """Return the private names that each package defines: attributes, fields and functions."""
    names = defaultdict(set)
    for path, node in nodes(ast.AST):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names[package_of(path)].add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names[package_of(path)].add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names[package_of(path)].add(name)
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="object"), attr="__setattr__"),
                args=[_, ast.Constant(value=str(name)), _],
            ):
                names[package_of(path)].add(name)
    return names


def test_private_attributes_stay_in_their_package():
    own = private_names_by_package()
    faults = []
    for path, node in nodes_at_run_time(ast.Attribute):
        private = node.attr.startswith("_") and not is_dunder(node.attr)
        if not private or path in MAY_TOUCH_PRIVATE or node.attr in NAMEDTUPLE_METHODS:
            continue
        by_itself = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        if not by_itself and node.attr not in own[package_of(path)]:
            faults.append(f"{where(path, node)}: {ast.unparse(node)}")
    report(faults)


def test_the_environment_is_read_in_few_places():
    faults = []
    for path, node in nodes((ast.Attribute, ast.ImportFrom)):
        inner = path.relative_to(SRC).as_posix()
        if any(inner == place or inner.startswith(place + "/") for place in MAY_READ_ENVIRON):
            continue
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv"):
                faults.append(f"{where(path, node)}: {ast.unparse(node)}")
            case ast.ImportFrom(module="os", names=names):
                taken = {alias.name for alias in names} & {"environ", "environb", "getenv"}
                faults += [f"{where(path, node)}: from os import {name}" for name in taken]
    report(faults)
