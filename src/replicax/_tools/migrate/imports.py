"""Imports of TensorFlow and Keras, Keras' backend, and names of NumPy 1, rewritten."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from replicax._tools.migrate.names import replacement
from replicax.tf._names import NAMESPACES

# Replicax has no counterpart: such an import stays, and fails as before.
_NOT_HERE = ("contrib", "core", "estimator", "examples", "lite", "python", "tools")
_DATASETS = ("tensorflow_datasets", "tensorflow_datasets.public_api")


def rewritten(text: str) -> str:
    """The source, rewritten; `text` itself if nothing has to be.

    `cst.ParserSyntaxError` if it is no Python.
    """
    tree = cst.parse_module(text)
    changed = tree.visit(_Rewriter())
    return changed.code if not changed.deep_equals(tree) else text


def replaced(module: str) -> str | None:
    """The module to import in place of this one, or None if it stays."""
    if module in _DATASETS:
        return "replicax.tf.datasets"
    package, _, rest = module.partition(".")
    if package == "keras" and rest.partition(".")[0] != "src":
        return f"replicax.tf.{module}"
    if package != "tensorflow":
        return None
    if rest == "compat.v2" or rest.startswith("compat.v2."):
        rest = rest.removeprefix("compat.v2").removeprefix(".")
    # A few of TensorFlow's internal modules exist here.
    is_inside = "." in rest and f"tf.{rest}" in NAMESPACES
    if rest.partition(".")[0] in _NOT_HERE and not is_inside:
        return None
    return f"replicax.tf.{rest}" if rest else "replicax.tf"


class _Rewriter(cst.CSTTransformer):
    """Changes import statements, "tensorflow" where it names a backend, and NumPy 1's names."""

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        if isinstance(updated_node.value, cst.Name):
            new = replacement(updated_node.value.value, updated_node.attr.value)
            return updated_node if new is None else _expression(new)
        return updated_node

    def leave_AssignTarget(
        self, original_node: cst.AssignTarget, updated_node: cst.AssignTarget
    ) -> cst.AssignTarget:
        # `np.float = float` gives NumPy the name.
        return original_node if m.matches(original_node.target, m.Attribute()) else updated_node

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        names = [self._alias(alias) for alias in updated_node.names]
        return updated_node.with_changes(names=names)

    def _alias(self, alias: cst.ImportAlias) -> cst.ImportAlias:
        old = _dotted(alias.name)
        new = replaced(old)
        if new is None:
            return alias
        if alias.asname is None:  # `import tensorflow.keras` binds `tensorflow`
            bound = old.partition(".")[0]
            whole = replaced(bound) or new
            return alias.with_changes(name=_expression(whole), asname=cst.AsName(cst.Name(bound)))
        return alias.with_changes(name=_expression(new))

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom:
        if updated_node.module is None or updated_node.relative:
            return updated_node
        new = replaced(_dotted(updated_node.module))
        names = updated_node.names
        if new is None or (
            new == "replicax.tf"
            and not isinstance(names, cst.ImportStar)
            and all(_dotted(alias.name) in _NOT_HERE for alias in names)
        ):
            return updated_node
        return updated_node.with_changes(module=_expression(new))

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        if m.matches(updated_node, _BACKEND_SET):
            return updated_node.with_changes(value=_jax(updated_node.value))
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.Call:
        if not m.matches(updated_node, _BACKEND_CALL):
            return updated_node
        *others, last = updated_node.args
        return updated_node.with_changes(args=[*others, last.with_changes(value=_jax(last.value))])


_BACKEND_NAME = m.MatchIfTrue(lambda text: str(text).strip("\"'") == "KERAS_BACKEND")
_TENSORFLOW = m.SimpleString(
    value=m.MatchIfTrue(lambda text: str(text).strip("\"'") == "tensorflow")
)
_KEY = m.SimpleString(value=_BACKEND_NAME)
_BACKEND_SET = m.Assign(
    targets=[m.AssignTarget(m.Subscript(slice=[m.SubscriptElement(slice=m.Index(value=_KEY))]))],
    value=_TENSORFLOW,
)
_BACKEND_CALL = m.Call(args=[m.Arg(_KEY), m.Arg(_TENSORFLOW)]) | m.Call(
    func=m.Attribute(attr=m.Name("set_backend")), args=[m.Arg(_TENSORFLOW)]
)


def _jax(value: cst.BaseExpression) -> cst.BaseExpression:
    """The string "jax" in the quotes of the old one."""
    old = cst.ensure_type(value, cst.SimpleString)
    return old.with_changes(value=old.value.replace("tensorflow", "jax"))


def _dotted(node: cst.BaseExpression) -> str:
    if isinstance(node, cst.Attribute):
        return f"{_dotted(node.value)}.{node.attr.value}"
    return node.value if isinstance(node, cst.Name) else ""


def _expression(dotted: str) -> Any:
    return cst.parse_expression(dotted)
