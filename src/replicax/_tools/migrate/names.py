"""The names of TensorFlow here, and the fate of each; names of NumPy 1 and their replacements."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass

from replicax._tools.migrate import kinds
from replicax.tf._absent import CHANGES, instead

# The packages whose names are listed, and the prefixes of their names.
PACKAGES = {
    name: "tf" if name == "tensorflow" else name
    for name in (
        "keras", "keras_cv", "keras_nlp", "tensorflow", "tensorflow_addons",
        "tensorflow_datasets", "tensorflow_hub", "tensorflow_io",
        "tensorflow_model_optimization", "tensorflow_privacy", "tensorflow_probability",
        "tensorflow_text", "tf_agents", "tf_keras",
    )
}  # fmt: skip
WHOLE = frozenset(kinds.HOMES)  # the import of a package is no name of it
SAME, CHANGED, MISSING = "same", "changed", "missing"
# A program built on these has to be rewritten; nothing replaces them.
_BUILT_ON = (
    "tf.Graph", "tf.InteractiveSession", "tf.Session", "tf.compat.v1", "tf.contrib",
    "tf.estimator", "tf.feature_column", "tf.get_variable", "tf.placeholder", "tf.variable_scope",
    "tf_agents",
)  # fmt: skip
_NOTHING = {
    "tf": "Look for it in `keras.ops` or `jax.numpy`.",
    "keras": "Keras 3 does not have it.",
    "tensorflow_datasets": "Look for it in tensorflow-datasets itself.",
}


@dataclass(frozen=True)
class Verdict:
    """The fate of a name: `SAME`, `CHANGED` or `MISSING`, and what to use instead.

    `ends`: nothing replaces a missing name.
    """

    kind: str
    what: str = ""
    ends: bool = False


@functools.cache
def verdict(name: str) -> Verdict:
    """The verdict on a name of TensorFlow, "tf.…", or of a package around it."""
    package = name.partition(".")[0]
    if name.startswith("tf.compat.v1.") and _is_modern(name):
        return verdict(f"tf.{name.removeprefix('tf.compat.v1.')}")
    if package not in kinds.HOMES:
        hint = instead(name) or "It needs TensorFlow."
    elif kinds.find(name) is None:
        hint = instead(name if package == "tf" else f"tf.{name}")
    else:
        what = _change(name)
        return Verdict(CHANGED, what) if what else Verdict(SAME)
    ends = hint is None or any(
        f"{name}.".startswith(f"{one}.") and hint == instead(one) for one in _BUILT_ON
    )
    return Verdict(MISSING, hint or _NOTHING[package], ends)


def _is_modern(name: str) -> bool:
    """Whether a name of `tf.compat.v1`, or the class of a method, is what `tf` has by it."""
    while (found := kinds.find(name)) is None:
        name = name.rpartition(".")[0]
    return found is kinds.find(f"tf.{name.removeprefix('tf.compat.v1.')}")


def _change(name: str) -> str | None:
    """The entry of the longest part of the name that the list has."""
    parts = name.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 1, -1))
    return next((CHANGES[part] for part in names if part in CHANGES), None)


def whole_name(module: str) -> str | None:
    """The name of a module here: "tensorflow.keras" is "tf.keras"; None for other packages."""
    package, dot, rest = module.partition(".")
    if module in ("replicax.tf.datasets", "tensorflow_datasets.public_api"):
        return "tensorflow_datasets"
    if module == "replicax.tf" or module.startswith("replicax.tf."):  # already migrated
        return f"tf{module.removeprefix('replicax.tf')}"
    if package not in PACKAGES:
        return None
    name = f"{PACKAGES[package]}{dot}{rest}"
    # TensorFlow 2 under the name that programs for both versions use.
    modern = name == "tf.compat.v2" or name.startswith("tf.compat.v2.")
    return f"tf{name.removeprefix('tf.compat.v2')}" if modern else name


_VARIABLES = {
    "TF_CONFIG": "TF_CONFIG is read as TensorFlow reads it; `replicax run --workers N` sets it.",
    "TF_FORCE_GPU_ALLOW_GROWTH": "TF_FORCE_GPU_ALLOW_GROWTH has no effect: set "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false.",
    "TF_GPU_ALLOCATOR": "TF_GPU_ALLOCATOR has no effect: see XLA_PYTHON_CLIENT_ALLOCATOR.",
    "TF_GPU_THREAD_MODE": "TF_GPU_THREAD_MODE has no effect.",
    "TF_USE_LEGACY_KERAS": "TF_USE_LEGACY_KERAS has no effect: Keras is Keras 3.",
    "TF_XLA_FLAGS": "TF_XLA_FLAGS has no effect: all is compiled; see XLA_FLAGS.",
}


_NO_VALUE = (
    "`.numpy()` in a `tf.function`: there is no value yet; return the array, or use `tf.print`."
)


def checks(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Points to look at in a piece of a program, known by its form: the line, and what to do."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="value"), args=[], keywords=[]):
                yield node.lineno, "`variable.value()`: it is a property: `variable.value`."
            case ast.Constant(value=str() as text) if text in _VARIABLES:
                yield node.lineno, _VARIABLES[text]
            case ast.Call(func=called, args=[ast.Constant(value="tensorflow"), *_]):
                if ast.unparse(called).rpartition(".")[2] in ("import_module", "__import__"):
                    yield node.lineno, "TensorFlow is imported by its name as a text."
            case ast.FunctionDef() if any(map(_compiles, node.decorator_list)):
                for inner in ast.walk(node):
                    match inner:
                        case ast.Call(func=ast.Attribute(attr="numpy"), args=[]):
                            yield inner.lineno, _NO_VALUE


def _compiles(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).endswith(".function")


# Other names of the same, "np.…" or Python's own: these are rewritten.
RENAMED = {
    "Inf": "np.inf", "Infinity": "np.inf", "NAN": "np.nan", "NINF": "(-np.inf)", "NaN": "np.nan",
    "PINF": "np.inf", "alltrue": "np.all", "cfloat": "np.complex128", "complex": "complex",
    "complex_": "np.complex128", "cumproduct": "np.cumprod", "float": "float",
    "float_": "np.float64", "infty": "np.inf", "int": "int", "longfloat": "np.longdouble",
    "mat": "np.asmatrix", "object": "object", "product": "np.prod", "round_": "np.round",
    "singlecomplex": "np.complex64", "sometrue": "np.any", "str": "str", "string_": "np.bytes_",
    "trapz": "np.trapezoid", "unicode_": "np.str_",
}  # fmt: skip
_BY_HAND = {
    "asfarray": "`np.asarray(x, dtype=float)`",
    "asscalar": "`x.item()`",
    "cast": "`np.asarray(x, dtype)`",
    "find_common_type": "`np.result_type`",
    "in1d": "`np.isin(x.ravel(), y)`",
    "issubclass_": "Python's `issubclass`",
    "msort": "`np.sort(x, axis=0)`",
    "obj2sctype": "`np.dtype(x).type`",
    "safe_eval": "`ast.literal_eval`",
    "set_string_function": "`np.set_printoptions`",
}
MODULES = ("np", "numpy")  # the usual name, even in cells without the import


def replacement(module: str, name: str) -> str | None:
    """The new name of one like `np.Inf`; None for names that stay."""
    new = RENAMED.get(name) if module in MODULES else None
    return new and new.replace("np.", f"{module}.")


def of_numpy_1(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """The line of each such name, its verdict, and whether it is rewritten."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(module), name, ast.Load()) if module in MODULES:
                if new := replacement(module, name):
                    yield node.lineno, f"`{module}.{name}`, of NumPy 1: becomes `{new}`.", True
                elif name in _BY_HAND:
                    text = f"`{module}.{name}`, of NumPy 1: use {_BY_HAND[name]}."
                    yield node.lineno, text, False
            case ast.ImportFrom(module="numpy", names=names, level=0):
                for name in names:
                    if hint := RENAMED.get(name.name) or _BY_HAND.get(name.name):
                        text = f"`from numpy import {name.name}`, of NumPy 1: use {hint}."
                        yield node.lineno, text, False
