"""Who may import whom: the arrows of the design and its five bans. Sizes are in test_shape.py."""

import ast
import pkgutil
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[1] / "src" / "replicax"

STDLIB, PUBLIC = frozenset(sys.stdlib_module_names), "replicax"
TOOLS = {"_tools"}
KERAS = {"_keras", "_function", "_tape", "_fit"}
ENGINE = {"_core", "_control", "_cpu", "_program", *KERAS, "data", "_input", "_mesh"}
# What a package or module may import of Replicax, lowest first. The longest prefix decides.
LAYERS = {
    "_core.errors": set(),
    "_core.env": {"_core.errors"},
    "_core.folder": {"_core.errors"},
    "_core.channel": {"_core.errors"},
    "_core.seams": set(),
    "_core.events": set(),
    "_core.tracing": {"_core.errors", "_core.seams"},
    "_net": {"_core.errors", "_core.env", "_core.interrupts"},
    "_control": {
        "_net",
        "_core.channel",
        "_core.errors",
        "_core.env",
        "_core.interrupts",
        "_core.events",
        "_processes.prometheus",
    },
    "cluster_resolver": {"_core.errors", "_core.env"},
    "_core": {"_core"},
    "_cpu": {"_core"},
    # Below the seams: what captures and runs a step reads and writes variables by it.
    "_keras._compat": {"_core.errors", "_core.tracing"},
    "_program": {"_core", "_cpu", "_keras._compat"},
    "_keras": {"_core", "_cpu", "_program"},
    "_function": {"_core", "_program", "_keras"},
    "_tape": {"_core", "_program", "_keras"},
    "_fit": {"_core", "_cpu", "_program", "_keras"},
    "data": {
        "_core.wire",
        "_core.errors",
        "_core.folder",
        "_core.seams",
        "_core.events",
        "_core.tracing",
        "_cpu",
    },
    "_input": {"_core", "data"},
    "_mesh": {"_core", "_control", "_cpu", "_program", "_keras", "_net", "cluster_resolver"},
    "_ps": {*ENGINE - {"_mesh", "_tape"}, "_net", "_processes", "cluster_resolver"},
    "tpu": {"_core", "_mesh", "cluster_resolver"},
    "config": {"_core", "_cpu", "_mesh", "cluster_resolver"},
    "strategies": {
        "_core",
        "_control",
        "_keras",
        "_fit",
        "_input",
        "_mesh",
        "_ps",
        "cluster_resolver",
        "tpu",
    },
    "coordinator": {"_ps", "_core"},
    "train": {"_core", "_program", "_keras", "_input"},
    "callbacks": {
        "_core",
        "_keras",
        "_fit",
        "_tools.profile",
        "_tools.verify",
        "experimental",
        "train",
    },
    "layers": {"_core", "_keras", "_function", "_ps", "data._host"},
    "experimental": {"strategies", "_core", "_control", "_input", "_ps", "train"},
    PUBLIC: {
        *ENGINE,
        "_tools.plan",
        "_ps",
        "_tools.verify",
        "strategies",
        "coordinator",
        "callbacks",
        "layers",
        "experimental",
        "train",
        "tpu",
        "config",
        "cluster_resolver",
        "data",
    },
    "__main__": {"launch"},
    "_processes": {"_core.env", "_core.errors"},
    "_processes.prometheus": set(),
    "launch": {
        "_net",
        "_processes",
        "cluster_resolver",
        "_core.env",
        "_core.errors",
        "_core.events",
        "_core.machine.nvidia",
    },
    "report": {"_tools.compare"},
    "_tools": {
        *ENGINE - {"_control", "_function", "_tape", "data", "_input"},
        "_tools",
        "strategies",
        "testing",
        "cluster_resolver",
        "launch",
        "train",
        PUBLIC,
    },
    "_tools.text": {"_core.errors"},
    "_tools.top": {"_core.errors", "_processes"},
    "tf": {*ENGINE - {"_control", "_input", "_mesh"}, "_ps", "strategies", PUBLIC},
    "_tools.migrate": {
        "_tools.migrate",
        "_tools.text",
        "_core.errors",
        "_core.env",
        "_core.events",
        "_processes.rules",
        "_tools.script",
        "launch._child",
        "tf._absent",
        "tf._keras2.arguments",
        "tf._names",
        PUBLIC,
    },
    "testing": {PUBLIC, "_core.machine.startup"},
}
# Which modules may import a library. One that is not named here may be imported nowhere.
LIBRARIES = {
    "jax": {
        *ENGINE,
        *TOOLS,
        "_ps",
        "strategies",
        "callbacks",
        "experimental",
        "testing",
        "tf",
        "tpu",
        "train",
    },
    "numpy": {
        *ENGINE,
        *TOOLS,
        "_net",
        "data",
        "layers",
        "train",
        "_ps",
        "strategies",
        "callbacks",
        "experimental",
        "testing",
        "tf",
        "tpu",
    },
    "keras": {
        *KERAS,
        *TOOLS,
        "_program.capture",
        "_ps.variables",
        "callbacks",
        "layers",
        "testing",
        "tf",
    },
    "libcst": {"_tools.commands", "_tools.migrate"},
    "malt": {"tf._autograph"},
    "keras.src": {"_keras._compat"},
    "jax._src": set(),
    "grain": {"data", "_tools.compare", "testing"},
    # In launch, in one file and on first use: functions travel by it.
    "cloudpickle": {"data", "launch._function", "_ps"},
    **dict.fromkeys(["google", "pyarrow", "PIL"], {"data"}),
    "absl": {"data", "tf._test"},  # on which Keras depends
    "fsspec": {"train._bucket"},
    "google_crc32c": {"_core.wire"},
    "filelock": {"_core.machine.compilation_cache"},
    "ray": {"_ps", "_processes.ray_connection", "launch._ray"},
    "packaging": {"_tools.doctor"},
    "rich": {"_tools"},
    "sklearn": {"_tools.compare"},
    "matplotlib": {"_tools"},
    "pytest": {"testing"},
}
STDLIB_ONLY = {
    "_control",
    "_core.channel",
    "_core.env",
    "_core.errors",
    "_core.folder",
    "_core.events",
    "_core.seams",
    "_processes",
    "cluster_resolver",
    "launch",
}
MAY_WRITE_ENVIRON = {"launch", "_core.env"}
ENVIRON_WRITES = {"setdefault", "update", "pop", "popitem", "clear", "__setitem__", "__delitem__"}


def longest_prefix(name, table):
    """Return the entry of `table` that is `name` or the nearest package around it, or None."""
    fitting = [entry for entry in table if name == entry or name.startswith(entry + ".")]
    return max(fitting, key=len, default=None)


def module_of(path):
    """Return ("_core.env", its package "_core"); the package's own file is PUBLIC."""
    parts = path.relative_to(SRC).with_suffix("").parts
    package = parts[:-1]
    return ".".join(package if parts[-1] == "__init__" else parts) or PUBLIC, ".".join(package)


def runtime_nodes(tree):
    """Walk `tree` without what stands under `if TYPE_CHECKING:`, which never runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            node = ast.Module(node.orelse, [])
        yield node
        yield from runtime_nodes(node)


def imported(node, package):
    """Yield the absolute dotted names that a statement imports, `from a import b` as `a.b`."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = ["replicax", *package.split(".")] if package else ["replicax"]
        base = above[: len(above) - node.level + 1] if node.level else []
        source = ".".join([*base, *([node.module] if node.module else [])])
        yield from (f"{source}.{alias.name}" for alias in node.names)


def import_fault(name, module):
    """Return the rule that `import name` breaks in `module`, or None."""
    top, _, inner = name.partition(".")
    if top == "replicax":
        owner, target = longest_prefix(module, LAYERS), longest_prefix(inner, LAYERS) or PUBLIC
        allowed = inner.partition(".")[0] == owner or longest_prefix(inner, LAYERS[owner])
        if PUBLIC in LAYERS[owner] and "._" not in name:
            allowed = True
        return None if allowed else f"{module} may not import {target} of replicax"
    library = longest_prefix(name, LIBRARIES) or top
    if library in STDLIB:
        return None
    allowed = longest_prefix(module, LIBRARIES.get(library, ()))
    bare = longest_prefix(module, STDLIB_ONLY)
    if bare and len(allowed or "") <= len(bare):
        return f"{module} may import the standard library only, not {library}"
    return None if allowed else f"{module} may not import {library}"


def environ_fault(node, module, names):
    """Return the rule that a write to the environment breaks, or None."""

    def is_environ(expression):
        return names.get(ast.unparse(expression), ast.unparse(expression)) == "os.environ"

    match node:
        case ast.Subscript(value=target, ctx=ast.Store() | ast.Del()):
            writes = is_environ(target)
        case ast.AugAssign(target=target):
            writes = is_environ(target)
        case ast.Call(func=ast.Attribute(value=target, attr=method)) if method in ENVIRON_WRITES:
            writes = is_environ(target)
        case ast.Call(func=function):
            called = names.get(ast.unparse(function), ast.unparse(function))
            writes = called in {"os.putenv", "os.unsetenv"}
        case _:
            return None
    forbidden = writes and not longest_prefix(module, MAY_WRITE_ENVIRON)
    return f"{module} may not write os.environ" if forbidden else None


def isinstance_fault(node, module, strategies):
    """Return the rule that asking for a kind of strategy breaks, or None."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass" as asks), args=[_, kinds]):
            words = {part.id for part in ast.walk(kinds) if isinstance(part, ast.Name)}
            words |= {part.attr for part in ast.walk(kinds) if isinstance(part, ast.Attribute)}
            if words & strategies and not longest_prefix(module, {"strategies"}):
                return f"{module} may not ask {asks}(…, {', '.join(sorted(words & strategies))})"
    return None


def faults(source, module, package, strategies=frozenset()):
    """Return "line: rule" for every rule that one file breaks."""
    nodes = list(runtime_nodes(ast.parse(source)))
    names = {}  # what a local name stands for, so that `from os import environ` does not escape
    for node in nodes:
        for alias in getattr(node, "names", []) if isinstance(node, ast.ImportFrom) else []:
            names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    found = []
    for node in nodes:
        rules = [import_fault(name, module) for name in imported(node, package)]
        rules.append(environ_fault(node, module, names))
        rules.append(isinstance_fault(node, module, strategies))
        found += [f"{node.lineno}: {rule}" for rule in rules if rule]
    return found


def strategy_classes():
    """Return the names of the classes in strategies/ that derive from another class there."""
    trees = [ast.parse(path.read_text()) for path in (SRC / "strategies").glob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return frozenset(
        kind.name for kind in classes if any("Strategy" in ast.unparse(b) for b in kind.bases)
    )


def test_every_import_follows_an_arrow_of_the_design():
    strategies = strategy_classes()
    broken = [
        f"{path.relative_to(SRC.parents[1])}:{fault}"
        for path in sorted(SRC.rglob("*.py"))
        for fault in faults(path.read_text(), *module_of(path), strategies)
    ]
    assert not broken, "\n" + "\n".join(broken)


def test_every_package_has_a_layer():
    modules = {module_of(path)[0].partition(".")[0] for path in SRC.rglob("*.py")}
    assert modules <= set(LAYERS), f"no layer is drawn for {sorted(modules - set(LAYERS))}"


@pytest.mark.parametrize(
    ("module", "source", "rule"),
    [
        ("_core.x", "from replicax._mesh import runtime", "may not import _mesh"),
        ("_core.x", "from .._keras import variable", "may not import _keras"),
        ("_core.x", "def f():\n    import keras", "may not import keras"),
        ("_core.env", "from replicax._core import values", "may not import _core"),
        ("_core.env", "import jax", "standard library only"),
        ("_mesh.x", "import replicax._input.dataset", "may not import _input"),
        ("_keras._compat", "from replicax._program import jaxpr", "may not import _program"),
        ("_keras.x", "from keras.src import backend", "may not import keras.src"),
        ("_keras.x", "from keras import src", "may not import keras.src"),
        ("_keras._compat", "import jax._src.core", "may not import jax._src"),
        ("_input.x", "import replicax as rx", "may not import replicax"),
        ("_input.x", "import pandas", "may not import pandas"),
        ("launch._cli", "import cloudpickle", "standard library only"),
        ("launch._function", "import numpy", "standard library only"),
        ("_tools.x", "import os\nos.environ['A'] = '1'", "may not write os.environ"),
        ("_tools.x", "import os\ndel os.environ['A']", "may not write os.environ"),
        ("_tools.x", "from os import environ as e\ne.setdefault('A', '1')", "may not write"),
        ("_tools.x", "import os\nos.environ |= {}", "may not write os.environ"),
        ("_tools.x", "from os import putenv\nputenv('A', '1')", "may not write os.environ"),
        ("_mesh.x", "isinstance(s, (int, rx.SomeStrategy))", "may not ask isinstance"),
    ],
)
def test_a_broken_rule_is_found(module, source, rule):
    found = faults(source, module, module.partition(".")[0], frozenset({"SomeStrategy"}))
    assert [rule in fault for fault in found] == [True], found


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("_core.x", "if TYPE_CHECKING:\n    from replicax._mesh import runtime"),
        ("_core.x", "from . import values\nfrom .env import flag\nimport replicax._core.errors"),
        ("_core.env", "import os\nfrom .errors import UsageError\nos.environ['A'] = '1'"),
        ("_keras._compat", "from keras.src import backend"),
        ("launch._cli", "import os\nfrom replicax._core.env import flag\nos.environ.pop('A')"),
        ("launch._function", "def f():\n    import cloudpickle"),
        ("_tools.x", "import replicax as rx\nfrom replicax import errors\nimport rich.table"),
        ("_tools.x", "from replicax._core.errors import needs\nimport replicax.experimental"),
        ("strategies.x", "isinstance(s, SomeStrategy)"),
        ("_mesh.x", "import os\nos.environ.get('A')\nisinstance(s, Strategy)"),
    ],
)
def test_what_the_design_draws_is_allowed(module, source):
    assert faults(source, module, module.partition(".")[0], frozenset({"SomeStrategy"})) == []


def test_what_benchmarks_scripts_and_tests_import_is_there():
    files = [path for room in ("benchmarks", "scripts", "tests") for path in in_root(room)]
    names = {name for path in files for name in ours_in(path)}
    assert len(names) > 300
    names -= {"replicax.tf.distribute.NoSuchStrategy"}  # a test wants its error
    assert [name for name in sorted(names) if not is_there(name)] == []


def in_root(folder):
    return (SRC.parents[1] / folder).rglob("*.py")


def ours_in(path):
    """Yield the names of Replicax that a file imports, also where it runs as a program."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not getattr(node, "level", 0):
            yield from (name for name in imported(node, "") if name.startswith("replicax."))


def is_there(name):
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True
