"""Attributes and arguments of Replicax' and Keras' classes and functions, by introspection."""

from __future__ import annotations

import builtins
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from replicax.tf._absent import ABSENT, CHANGES
from replicax.tf._keras2.arguments import ARGUMENTS, Change

METHOD, MISSING, UNKNOWN = "method", "missing", "unknown"  # attributes, or a name, without a value
HOMES = {
    "tf": "replicax.tf",
    "keras": "replicax.tf.keras",
    "tensorflow_datasets": "replicax.tf.datasets",
}
# TensorFlow's names under which methods and arguments are listed; Keras' own stand for both.
_NOTED = (
    "tf.data.Dataset",
    "tf.distribute.Strategy",
    "tf.GradientTape",
    "tf.keras.Model",
    "tf.keras.callbacks.Callback",
    "tf.keras.callbacks.ModelCheckpoint",
    "tf.keras.callbacks.TensorBoard",
    "tf.keras.layers.Layer",
    "tf.keras.losses.Loss",
    "tf.keras.metrics.Metric",
    "tf.keras.optimizers.Optimizer",
    "tf.Tensor",
    "tf.Variable",
)
# Functions whose annotations say little, by the end of their names.
_MODELS = ("load_model", "clone_model", "model_from_json")
_OF_ARRAYS = (
    "tf", "tf.math", "tf.nn", "tf.linalg", "tf.image", "tf.random", "tf.strings", "tf.io",
    "tf.keras.ops", "tf.keras.backend", "tf.keras.activations", "tf.keras.random", "keras.ops",
    "tf.keras.losses", "tf.keras.metrics", "keras.losses", "keras.activations", "keras.random",
)  # fmt: skip
_NO_ARRAYS = {
    "custom_gradient", "function", "get_logger", "name_scope", "device", "init_scope",
    "py_function", "numpy_function", "control_dependencies", "get", "deserialize", "no_op", "print",
}  # fmt: skip
_NUMBERS = ("predict", "evaluate", "get_weights", "get_config", "to_json", "train_on_batch",
            "test_on_batch", "predict_on_batch", "as_numpy_iterator", "load_data",
            "numpy")  # fmt: skip
_ARRAY_METHODS = ("result", "reduce", "gather", "read_value", "assign", "assign_add", "assign_sub")
# NumPy functions that call their first argument's method, so that a JAX array stays one.
ASKING = (
    "clip", "cumsum", "diagonal", "repeat", "reshape", "round", "squeeze", "swapaxes", "take",
    "transpose",
)  # fmt: skip
_POPPED = re.compile(r"""kwargs\.(?:pop|get)\(\s*["'](\w+)|["'](\w+)["'] in kwargs""")


class Plain(enum.Enum):
    """Values without a class of TensorFlow's or Keras'."""

    FOREIGN = "of Python itself or of another package"
    TENSOR = "an array, or a nest of arrays"
    NONE = "None, which another assignment may replace"


@dataclass(frozen=True)
class Thing:
    """An instance of a class of Replicax or Keras."""

    kind: type


@functools.cache
def find(name: str) -> Any:
    """The object of a name such as "tf.data.Dataset"; None if it is missing.

    A name that exists, but needs a package that is not installed, is `UNKNOWN`.
    """
    package, *parts = name.split(".")
    if package not in HOMES:
        return None
    importlib.import_module("replicax.tf.keras")  # adds the names of Keras 2
    found: Any = importlib.import_module(HOMES[package])
    for index, part in enumerate(parts):
        try:
            found = getattr(found, part)
        except AttributeError:
            if not isinstance(found, ModuleType):
                return None
            try:
                found = importlib.import_module(".".join([HOMES[package], *parts[: index + 1]]))
            except ImportError:
                return None
        except ImportError:
            return UNKNOWN
    return UNKNOWN if found is None else found  # `tf.newaxis` is None


def public(module: str) -> list[str]:
    """The names that `from module import *` imports."""
    return [name for name in dir(find(module)) if not name.startswith("_")]


def tensor() -> type:
    """The class of arrays."""
    return find("tf.Tensor")


@functools.cache
def labels(kind: type) -> tuple[str, ...]:
    """The names of a class and of its bases in the tables of differences."""
    noted = {find(name): name for name in _NOTED}
    return tuple(noted[one] for one in kind.__mro__ if one in noted)


def note(notes: dict[str, str], kind: type, rest: str) -> str | None:
    """The list's entry for an attribute or argument of a class."""
    return next((notes[key] for one in labels(kind) if (key := f"{one}{rest}") in notes), None)


def older(kind: type | None, path: str) -> dict[str, Change]:
    """The arguments of Keras 2 that a class, or its method ".fit", takes under `tf.keras`."""
    found: dict[str, Change] = {}
    for one in kind.__mro__ if kind else ():
        found = {**ARGUMENTS.get(f"{one.__name__}{path}", {}), **found}
    return found


def is_noted(kind: type, name: str) -> bool:
    """Whether an attribute is listed as missing."""
    return note(ABSENT, kind, f".{name}") is not None


@functools.cache
def attribute(kind: type, name: str) -> Any:
    """An attribute of an instance: `METHOD`, `MISSING`, or its value, None if unknown."""
    kind = _as_made(kind)
    if not hasattr(kind, name) or is_noted(kind, name):
        is_open = hasattr(kind, "__getattr__") or name in _mentioned(kind)
        is_open = is_open and not is_noted(kind, name)
        return _property(kind, name, None) if is_open else MISSING
    found = inspect.getattr_static(kind, name)
    if isinstance(found, property):
        return _property(kind, name, found.fget)
    return METHOD if callable(getattr(kind, name, None)) else None


def _property(kind: type, name: str, getter: Any) -> Any:
    is_keras = issubclass(kind, (find("keras.Layer"), find("keras.callbacks.Callback")))
    if is_keras and name in ("model", "_model"):
        return Thing(find("keras.Model"))
    if is_keras and name == "optimizer":
        return Thing(find("keras.optimizers.Optimizer"))
    return returned(getter, name, kind) if getter is not None else None


@functools.cache
def _mentioned(kind: type) -> set[str]:
    """Attributes of `self` in the text of a class: instances may have them."""
    found: set[str] = set()
    for one in kind.__mro__[:-1]:
        try:
            found.update(re.findall(r"self\.(\w+)", inspect.getsource(one)))
        except (OSError, TypeError):  # a class without Python source
            continue
    return found


def holds_arrays(kind: type) -> bool:
    """Whether iterating over an instance gives arrays."""
    return kind.__module__.startswith(("replicax.data", "replicax._input"))


def enters_itself(value: Any) -> bool:
    """Whether `with value as x` gives the value."""
    return value == Thing(find("tf.GradientTape"))


def returned(function: Any, name: str, owner: type | None) -> Any:
    """The value that a function returns; None if unknown."""
    last, home = name.rpartition(".")[2], name.rpartition(".")[0]
    if last in _NUMBERS or function is None:
        return Plain.FOREIGN
    if owner is not None and last in _ARRAY_METHODS:
        return Plain.TENSOR
    if last in _MODELS or home.endswith("keras.applications"):
        return Thing(find("keras.Model"))
    if last == "fit":
        return Thing(find("keras.callbacks.History"))
    text = getattr(inspect.unwrap(function), "__annotations__", {}).get("return")
    if text == "Self":
        return owner and Thing(owner)
    found: Any = text
    if isinstance(text, str):
        names = getattr(inspect.unwrap(function), "__globals__", {})
        found = names.get(text) or {
            "Dataset": find("tf.data.Dataset"),
            "Strategy": find("tf.distribute.Strategy"),
        }.get(text, getattr(builtins, text, None))
    if isinstance(found, type) and found is not Any:
        module = found.__module__.partition(".")[0]
        return Thing(found) if module in ("replicax", "keras") else Plain.FOREIGN
    if last == "Input" or (owner is None and home in _OF_ARRAYS and last not in _NO_ARRAYS):
        return Plain.TENSOR
    is_tape = owner is not None and issubclass(owner, find("tf.GradientTape"))
    return Plain.TENSOR if is_tape else None


def misfits(
    function: Any,
    kind: type | None,
    path: str,
    count: int,
    named: Sequence[str],
    *,
    is_open: bool = False,
) -> list[str] | None:
    """Why a call does not fit; None if that is unknown.

    `function` is a function, a class, or a method of `kind`. `path` is its name behind the class's
    in the lists, such as ".fit". `count` arguments are given by position, `self` among them;
    `is_open` says that others are given besides, by `*` or `**`.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        fields = getattr(getattr(function, "DESCRIPTOR", None), "fields_by_name", None)
        if fields is not None:  # of a message of `tf.train.Example`
            return [f"takes no `{name}`." for name in named if name not in fields]
        return [] if not named and count <= 1 else None
    taken, has_others = _by_name(function, signature)
    texts, fitting = [], []
    for name in named:
        if name in taken or _is_taken(kind, f"{path}({name})"):
            if name in signature.parameters:
                fitting.append(name)
            continue
        if has_others:
            if signature.parameters and inspect.unwrap(function).__module__.startswith("replicax"):
                continue  # `**objects`, of any name
            return None
        key = f"{path}({name})"
        instead = note(ABSENT, kind, key) if kind else ABSENT.get(key)
        texts.append(f"takes no `{name}`" + (f". {instead}" if instead else "."))
    try:
        bind = signature.bind_partial if is_open else signature.bind
        bind(*[None] * count, **dict.fromkeys(fitting))
    except TypeError as error:
        texts.append(f"{error}.")
    return texts


def _is_taken(kind: type | None, key: str) -> bool:
    """Whether an argument is listed that a signature does not show."""
    return (note(CHANGES, kind, key) if kind else CHANGES.get(key)) is not None


def _by_name(function: Any, signature: inspect.Signature) -> tuple[set[str], bool]:
    """The arguments that may be given by name, and whether there may be others."""
    named = {
        name
        for name, one in signature.parameters.items()
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
    }
    if not _has_others(signature):
        return named, False
    for init in _inits(function):
        try:
            inner = inspect.signature(init)
            source = inspect.getsource(inspect.unwrap(init))
        except (OSError, TypeError, ValueError):
            return named, True
        named |= set(inner.parameters) - {"self", "args", "kwargs"}
        named |= {one or other for one, other in _POPPED.findall(source)}
        if not _has_others(inner) or re.search(r"if kwargs:\s+raise", source):
            return named, False
    return named, True


def _has_others(signature: inspect.Signature) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())


def _inits(function: Any) -> Iterator[Callable[..., Any]]:
    """The `__init__` methods of a class and its bases, by which arguments are passed on."""
    if not isinstance(function, type):
        yield function
        return
    mro = _as_made(function).__mro__
    yield from (vars(one)["__init__"] for one in mro if "__init__" in vars(one))


def _as_made(kind: type) -> type:
    """The class of what is made by a class: `keras.Model(inputs, outputs)` is functional."""
    is_model = kind is find("keras.Model")
    return importlib.import_module("keras.src.models.functional").Functional if is_model else kind


def uncalled(base: type, names: set[str], *, is_older: bool) -> Iterator[tuple[str, str]]:
    """The methods of a subclass that Keras 3 does not call, with what to override.

    `names` are what it defines; if it `is_older`, its `update_step` does not take three arguments.
    """
    module = importlib.import_module("replicax.tf._keras2.uncalled")
    if not issubclass(base, find("keras.optimizers.Optimizer")):
        return
    if not names & module.ENOUGH:
        instead = module.UNCALLED | module.UNCALLED_IN_FIT
        yield from ((name, instead[name]) for name in sorted(names & set(instead)))
    if is_older:
        yield "update_step", module.RULE
