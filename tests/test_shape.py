"""Sizes of what a reader meets, private names, a test for every raise. Imports: test_layers.py."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from test_layers import runtime_nodes

ROOT = Path(__file__).resolve().parents[1]
SRC = ROOT / "src" / "replicax"
FILES = sorted(SRC.rglob("*.py"))
TREES = {path: ast.parse(path.read_text()) for path in FILES}

METHODS_PER_CLASS = 16
LINES_PER_FUNCTION, LINES_PER_FUNCTION_P95 = 60, 35
LINES_PER_FILE = 300
CLASSES_IN_A_LINE = 2

# The error tree is drawn in the design, three deep: it is there to catch by and has no behaviour.
DEEP_BY_DESIGN = {SRC / "_core" / "errors.py"}
# The file that exists to hold what Keras does not publish.
MAY_TOUCH_PRIVATE = {SRC / "_keras" / "_compat.py"}
# All of it in one file, which is a list of small functions.
LONG_BY_DESIGN = {SRC / "_keras" / "_compat.py"}
NAMEDTUPLE_METHODS = {"_asdict", "_fields", "_make", "_replace"}
MAY_READ_ENVIRON = {"cluster_resolver", "launch", "_core/env.py", "testing", "report"}
# What `tf.distribute.TPUStrategy` has beside what all strategies have.
OF_ONE_STRATEGY = {
    "experimental_assign_to_logical_device",
    "experimental_replicate_to_logical_devices",
    "experimental_split_to_logical_devices",
}
BESIDE_THE_STRATEGIES = {"_base.py", "_extended.py", "_current.py"}

# A phrase of a test shows a message if it is this long and stands in the message word for word.
PHRASE = 10
# A test may fill in a placeholder, then no whole phrase stands in the source; this much has to.
WINDOW = 20

Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def where(path, node):
    return f"{path.relative_to(ROOT)}:{node.lineno}"


def nodes(kind, files=FILES):
    """Yield (path, node) for every node of `kind` in the source."""
    for path in files:
        yield from ((path, node) for node in ast.walk(TREES[path]) if isinstance(node, kind))


def nodes_at_run_time(kind):
    """Yield (path, node) for what is not there for the type checker only."""
    for path in FILES:
        found = runtime_nodes(TREES[path])
        yield from ((path, node) for node in found if isinstance(node, kind))


def report(faults):
    assert not faults, "\n" + "\n".join(faults)


def is_dunder(name):
    return name.startswith("__") and name.endswith("__")


def length(function):
    return function.end_lineno - function.lineno + 1


def names_of_bases(kind):
    """Return the last word of each base: `Base`, `module.Base` and `Base[T]` are all `Base`."""
    plain = (base.value if isinstance(base, ast.Subscript) else base for base in kind.bases)
    return [ast.unparse(base).rpartition(".")[2] for base in plain]


def test_no_class_is_wide():
    wide = []
    for path, kind in nodes(ast.ClassDef):
        names = {item.name for item in kind.body if isinstance(item, Function)}
        methods = [name for name in names if not is_dunder(name)]
        if len(methods) > METHODS_PER_CLASS:
            wide.append(f"{where(path, kind)}: {kind.name} has {len(methods)} methods")
    report(wide)


def test_no_function_is_long():
    report(
        [
            f"{where(path, function)}: {function.name} has {length(function)} lines"
            for path, function in nodes(Function)
            if length(function) > LINES_PER_FUNCTION
        ]
    )


def test_nearly_all_functions_are_short():
    lengths = sorted(length(function) for _, function in nodes(Function))
    assert lengths[len(lengths) * 95 // 100] <= LINES_PER_FUNCTION_P95


def test_no_file_is_long():
    lines = {path: len(path.read_text().splitlines()) for path in FILES}
    report(
        [
            f"{path.relative_to(ROOT)}: {count} lines"
            for path, count in lines.items()
            if count > LINES_PER_FILE and path not in LONG_BY_DESIGN
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


def test_no_class_hierarchy_is_deep():
    bases = defaultdict(set)
    for path, kind in nodes(ast.ClassDef):
        if path not in DEEP_BY_DESIGN:
            bases[kind.name] |= set(names_of_bases(kind)) - {kind.name}

    def depth(name):
        return 1 + max((depth(base) for base in bases[name] if base in bases), default=0)

    report(
        [f"{name} is {depth(name)} deep" for name in list(bases) if depth(name) > CLASSES_IN_A_LINE]
    )


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


def fragments(message):
    """Return what stands between the placeholders of a message, however it is put together."""
    match message:
        case ast.Constant(value=str(text)):
            return re.split(r"\{[^{}]*\}|%[-+#0-9.]*[a-zA-Z]", text)
        case ast.JoinedStr(values=values):
            constants = [part for part in values if isinstance(part, ast.Constant)]
            return [part.value for part in constants]
        case ast.BinOp(left=left, right=right):
            return fragments(left) + fragments(right)
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            return fragments(value)
        case ast.IfExp(body=body, orelse=orelse):
            return fragments(body) + fragments(orelse)
    return []


def raised_messages(trees):
    """Yield (path, raise, fragments) for every raise that writes its message out."""
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                parts = [part for argument in node.exc.args for part in fragments(argument)]
                if any(len(part) >= PHRASE for part in parts):
                    yield path, node, parts


def expected_texts(sources):
    """Return the text of every string in the tests but docstrings, without regex escapes."""
    texts = []
    for source in sources:
        tree = ast.parse(source)
        alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        texts += [
            re.sub(r"\\(.)", r"\1", node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in alone
        ]
    return texts


def windows(fragment):
    return {fragment[start : start + WINDOW] for start in range(len(fragment) - WINDOW + 1)}


def uncovered(trees, test_sources):
    """Return the raises whose message no test shows.

    A test shows a message by a phrase of at least ten characters that stands in it, or by twenty
    characters of it in a longer text. What stands in several messages shows none of them.
    """
    raises = list(raised_messages(trees))
    messages = {tuple(parts) for _, _, parts in raises}
    texts = expected_texts(test_sources)
    phrases = {piece for text in texts for piece in re.split(r"\.[*+]\??|\[\^?.*?\][*+]?", text)}
    phrases = {phrase for phrase in phrases if len(phrase) >= PHRASE and " " in phrase.strip()}
    windows_of = {message: set().union(*map(windows, message)) for message in messages}
    holders = Counter(window for found in windows_of.values() for window in found)
    everything = "\0".join(texts)

    def shown(message):
        within = [phrase for phrase in phrases if any(phrase in part for part in message)]
        if any(sum(any(p in part for part in m) for m in messages) == 1 for p in within):
            return True
        alone = (window for window in windows_of[message] if holders[window] == 1)
        return any(window in everything for window in alone)

    return [
        f"{where(path, node)}: no test shows a phrase of its own: {ast.unparse(node)[:150]}"
        for path, node, parts in sorted(raises, key=lambda found: (found[0], found[1].lineno))
        if not shown(tuple(parts))
    ]


def test_every_raise_has_a_test_that_shows_its_message():
    own = Path(__file__)
    tests = [path for path in sorted((ROOT / "tests").rglob("*.py")) if path != own]
    report(uncovered(TREES, [path.read_text() for path in tests]))


RAISE = "raise ValueError(f'The axis must be a number. Received: {axis!r}. Count from zero.')"


@pytest.mark.parametrize(
    ("test", "covered"),
    [
        ("pytest.raises(ValueError, match='axis must be')", True),
        (r"pytest.raises(ValueError, match=r'a number\. Received: .*\. Count from')", True),
        ("assert str(e) == 'The axis must be a number. Received: 3. Count from zero.'", True),
        ("'''The axis must be a number.'''", False),
        ("match='axis must'", False),
        (r"match=r'\. Received: '", False),
        ("match='The axes must be numbers'", False),
    ],
)
def test_a_raise_is_covered_by_a_phrase_of_its_own(test, covered):
    other = "raise ValueError(f'The shape is wrong. Received: {shape}.')"
    trees = {SRC / "a.py": ast.parse(RAISE), SRC / "b.py": ast.parse(other)}
    missing = uncovered(trees, [test, "match='shape is wrong'"])
    assert (missing == []) is covered, missing
