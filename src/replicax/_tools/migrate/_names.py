"""Which names of TensorFlow a piece of Python uses, and where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

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
