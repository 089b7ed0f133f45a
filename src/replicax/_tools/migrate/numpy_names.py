"""Names of NumPy 1 that NumPy 2 does not have, and their replacements."""

from __future__ import annotations

import ast
from collections.abc import Iterator

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
    """What to write for `np.Inf`; None for names that stay."""
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
