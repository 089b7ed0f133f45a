"""Which names of TensorFlow a piece of Python uses, and what becomes of each of them."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, final

from replicax.tf._absent import CHANGES, instead
from replicax.tf._keras2.arguments import ARGUMENTS, LeftOut

# The packages whose names are listed, and what their names begin with.
PACKAGES = {
    "keras": "keras",
    "keras_cv": "keras_cv",
    "keras_nlp": "keras_nlp",
    "tensorflow": "tf",
    "tensorflow_addons": "tensorflow_addons",
    "tensorflow_datasets": "tensorflow_datasets",
    "tensorflow_hub": "tensorflow_hub",
    "tensorflow_io": "tensorflow_io",
    "tensorflow_model_optimization": "tensorflow_model_optimization",
    "tensorflow_probability": "tensorflow_probability",
    "tensorflow_text": "tensorflow_text",
    "tf_agents": "tf_agents",
    "tf_keras": "tf_keras",
    "replicax": "replicax",
}


@final
@dataclass(frozen=True)
class Use:
    """A name at a place.

    Args:
        name: The whole name, such as "tf.data.Dataset".
        line: The line.
    """

    name: str
    line: int


@final
class Names:
    """What local names stand for, over all pieces of a program."""

    def __init__(self) -> None:
        self._modules: dict[str, str] = {}  # from imports
        self._assigned: dict[str, str] = {}  # from `layers = tf.keras.layers`

    @property
    def known(self) -> bool:
        """Whether anything of TensorFlow was imported."""
        return bool(self._modules)

    def uses(self, tree: ast.Module) -> list[Use]:
        """The uses in a piece; its imports are remembered for the pieces below it."""
        found = [use for node in ast.walk(tree) for use in self._imported(node)]
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=ast.Attribute() as value):
                    name = self.name_of(value)
                    if name is not None:
                        self._assigned[target] = name
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute | ast.Name) and id(node) not in inner:
                name = self.name_of(node)
                bare = isinstance(node, ast.Name) and (
                    "." not in (name or "") or node.id not in self._modules
                )
                if name is not None and not bare:
                    found.append(Use(name, node.lineno))
        return sorted(found, key=lambda use: use.line)

    def name_of(self, node: ast.AST) -> str | None:
        """The whole name that an expression is, or None."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        first = self._modules.get(node.id) or self._assigned.get(node.id)
        return first and ".".join([first, *reversed(parts)])

    def _imported(self, node: ast.AST) -> Iterator[Use]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                name = whole_name(alias.name)
                if name is None:
                    continue
                local = alias.asname or alias.name.partition(".")[0]
                self._modules[local] = name if alias.asname else name.partition(".")[0]
                yield Use(name, node.lineno)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            module = whole_name(node.module or "")
            for alias in node.names if module else ():
                if alias.name == "*":
                    yield Use(f"{module}", node.lineno)
                    continue
                self._modules[alias.asname or alias.name] = f"{module}.{alias.name}"
                yield Use(f"{module}.{alias.name}", node.lineno)


def whole_name(module: str) -> str | None:
    """What a module is called here: "tensorflow.keras" is "tf.keras"; None for other packages."""
    package, dot, rest = module.partition(".")
    if module == "replicax.tf" or module.startswith("replicax.tf."):  # was migrated before
        return f"tf{module.removeprefix('replicax.tf')}"
    if package not in PACKAGES or package == "replicax":
        return None
    name = f"{PACKAGES[package]}{dot}{rest}"
    # TensorFlow 2 under the name that programs for both versions use.
    modern = name == "tf.compat.v2" or name.startswith("tf.compat.v2.")
    return f"tf{name.removeprefix('tf.compat.v2')}" if modern else name


SAME, CHANGED, MISSING = "same", "changed", "missing"


@final
@dataclass(frozen=True)
class Verdict:
    """What becomes of a name.

    Args:
        kind: `SAME`, `CHANGED` or `MISSING`.
        what: What changes, or what to use instead.
    """

    kind: str
    what: str = ""


@functools.cache
def verdict(name: str) -> Verdict:
    """What becomes of a name of TensorFlow, "tf.…", or of a package around it."""
    package = name.partition(".")[0]
    if package in _HOMES:
        if not _is_there(name):
            hint = instead(name if package == "tf" else f"tf.{name}")
            return Verdict(MISSING, hint or _NOTHING[package])
        what = _change(name)
        return Verdict(CHANGED, what) if what else Verdict(SAME)
    return Verdict(MISSING, instead(name) or "It needs TensorFlow.")


_HOMES = {"tf": "replicax.tf", "keras": "keras"}
WHOLE = frozenset(_HOMES)
_NOTHING = {
    "tf": "Look for it in `keras.ops` or `jax.numpy`.",
    "keras": "Keras 3 does not have it.",
}


def _is_there(name: str) -> bool:
    """Ask the modules themselves, part by part."""
    package, *parts = name.split(".")
    found: Any = importlib.import_module(_HOMES[package])
    for index, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return False
            try:
                found = importlib.import_module(".".join([_HOMES[package], *parts[: index + 1]]))
            except ImportError:
                return False
        except ImportError:  # it is there, but for a package that is not installed
            return True
    return True


def _change(name: str) -> str | None:
    """By the longest part of the name that the list has."""
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((CHANGES[part] for part in names if part in CHANGES), None)


@final
@dataclass(frozen=True)
class Check:
    """Something to look at.

    Args:
        line: The line.
        text: What it is, and what to do.
    """

    line: int
    text: str


_METHODS = {
    "as_list": "`shape.as_list()`: a shape is a tuple: `list(x.shape)`.",
    "experimental_run_v2": "`strategy.experimental_run_v2` is called `strategy.run`.",
    "fit_generator": "`fit_generator` is gone: `fit` takes generators.",
    "get_shape": "`get_shape()`: write `x.shape`.",
    "predict_generator": "`predict_generator` is gone: `predict` takes generators.",
    "set_shape": "`set_shape`: shapes are known; use `tf.ensure_shape`, or leave it out.",
    "with_values": "Ragged tensors are not there: fill rows up.",
}
_VARIABLES = {
    "TF_CONFIG": "TF_CONFIG is read as TensorFlow reads it; `replicax run --workers N` sets it.",
    "TF_FORCE_GPU_ALLOW_GROWTH": "TF_FORCE_GPU_ALLOW_GROWTH says nothing: set "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false.",
    "TF_GPU_ALLOCATOR": "TF_GPU_ALLOCATOR says nothing: see XLA_PYTHON_CLIENT_ALLOCATOR.",
    "TF_GPU_THREAD_MODE": "TF_GPU_THREAD_MODE says nothing.",
    "TF_USE_LEGACY_KERAS": "TF_USE_LEGACY_KERAS says nothing: Keras is Keras 3.",
    "TF_XLA_FLAGS": "TF_XLA_FLAGS says nothing: all is compiled; see XLA_FLAGS.",
}
_KEYWORDS = {
    ("jit_compile", "False"): "`jit_compile=False`: compiled code is compiled by XLA always.",
    ("run_eagerly", "True"): "`run_eagerly=True`: a step is compiled under a strategy all the "
    "same; print with `tf.print`.",
    ("save_format", "'tf'"): "`save_format='tf'`: a folder that `tf.keras` reads, and TensorFlow "
    "does not; for serving `model.export(path)`.",
}


def checks(tree: ast.Module, names: Names) -> list[Check]:
    """What to look at in a piece of a program that uses TensorFlow.

    Args:
        tree: The piece.
        names: What its local names stand for.
    """
    found = [check for node in ast.walk(tree) for check in _of_node(node, names)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _of_arguments(node, names)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and _is_compiled(function, names):
            found += _of_compiled(function)
    return sorted(set(found), key=lambda check: (check.line, check.text))


def _of_node(node: ast.AST, names: Names) -> Iterator[Check]:
    match node:
        case ast.Call(func=ast.Attribute(attr="value"), args=[], keywords=[]):
            yield Check(node.lineno, "`variable.value()`: it is a property: `variable.value`.")
        case ast.Call(func=ast.Attribute(attr=method) as called) if method in _METHODS:
            if names.name_of(called) is None:
                yield Check(node.lineno, _METHODS[method])
        case ast.Constant(value=str() as text) if text in _VARIABLES:
            yield Check(node.lineno, _VARIABLES[text])
        case ast.keyword(arg=str() as name, value=ast.Constant() as value):
            text = _KEYWORDS.get((name, repr(value.value)))
            if text:
                yield Check(value.lineno, text)
        case ast.Call(func=called, args=[ast.Constant(value="tensorflow"), *_]):
            if ast.unparse(called) in ("importlib.import_module", "import_module", "__import__"):
                yield Check(node.lineno, "TensorFlow is imported by its name as a text.")


def _of_arguments(call: ast.Call, names: Names) -> Iterator[Check]:
    """Arguments of Keras 2 with values that mean something, where Keras 3 has none for them."""
    for place, table in ARGUMENTS.items():
        for keyword in call.keywords if _is_call_of(place, call.func, names) else ():
            match table.get(keyword.arg or ""), keyword.value:
                case LeftOut(values=allowed), ast.Constant(value=value):
                    if allowed and value not in allowed:
                        text = f"`{keyword.arg}={value!r}`: Keras 3 has no such argument."
                        yield Check(keyword.value.lineno, text)


def _is_call_of(place: str, called: ast.expr, names: Names) -> bool:
    kind, _, method = place.partition(".")
    if method:
        return isinstance(called, ast.Attribute) and called.attr == method
    name = names.name_of(called) or ""
    return name.startswith("tf.keras.layers.") if kind == "Layer" else name.endswith(f".{kind}")


def _is_compiled(function: ast.FunctionDef, names: Names) -> bool:
    called = [one.func if isinstance(one, ast.Call) else one for one in function.decorator_list]
    return any(names.name_of(one) == "tf.function" for one in called)


def _of_compiled(function: ast.FunctionDef) -> Iterator[Check]:
    """What has no value while a function is traced."""
    for node in ast.walk(function):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "numpy"
            and not node.args
        ):
            yield Check(
                node.lineno,
                "`.numpy()` in a `tf.function`: there is no value yet; return the array, or use "
                "`tf.print`.",
            )
