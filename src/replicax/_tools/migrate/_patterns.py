"""What else to look at in a program for TensorFlow, found by its form, not by a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from replicax._tools.migrate._names import Names


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
    "minimize": "`optimizer.minimize`: Keras 3 has no such method; take the gradients, then "
    "`optimizer.apply`.",
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
    ("save_format", "'tf'"): "`save_format='tf'`: Keras 3 writes `.keras` files; for serving "
    "`model.export(path)`.",
}


def checks(tree: ast.Module, names: Names) -> list[Check]:
    """What to look at in a piece of a program that uses TensorFlow.

    Args:
        tree: The piece.
        names: What its local names stand for.
    """
    found = [check for node in ast.walk(tree) for check in _of_node(node, names)]
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
