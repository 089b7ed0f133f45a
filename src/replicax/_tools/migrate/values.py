"""The values of a program, as far as its text tells; an unknown value is None."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from replicax._tools.migrate import kinds
from replicax._tools.migrate.kinds import Plain, Thing

Home = tuple[str, int | None, int]  # a file, a cell, and lines of the cell above its Python


@dataclass(frozen=True)
class Known:
    """A name of TensorFlow or Keras, such as "tf.data.Dataset"."""

    path: str
    imported: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Method:
    """An attribute of an instance, to be called."""

    owner: Thing
    name: str


@dataclass(frozen=True)
class Many:
    """A tuple or list; unless it is exact, its items stand for any number of them."""

    items: tuple[Any, ...]
    is_exact: bool = True


@dataclass(frozen=True)
class Class:
    node: ast.ClassDef
    names: dict[str, Any] = field(compare=False)
    bases: tuple[Any, ...] = field(compare=False)

    def families(self) -> Iterator[Class]:
        """It, and the classes of the program that it inherits from."""
        yield self
        for base in self.bases:
            if isinstance(base, Class) and base is not self:
                yield from base.families()

    def base(self) -> type | None:
        found = (b for one in self.families() for b in one.bases if isinstance(b, Known))
        return next((kind for b in found if isinstance(kind := kinds.find(b.path), type)), None)


@dataclass(frozen=True)
class Item:
    """An instance of a class of the program; with `above`, what `super()` is in it."""

    kind: Class
    above: bool = False


@dataclass(frozen=True)
class Function:
    """A function of the program; with `item`, a method of an instance."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope = field(compare=False)
    owner: Class | None = field(compare=False, default=None)
    item: Any = None

    def marks(self) -> set[str]:
        found = [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list
        return {ast.unparse(one).rpartition(".")[2] for one in found}


@dataclass(frozen=True)
class Rest:
    """The `**kwargs` of a function of the program."""

    node: Any


@dataclass(frozen=True)
class File:
    name: str


@dataclass
class Scope:
    """Names of a module, a class or a function."""

    home: Home
    names: dict[str, Any] = field(default_factory=dict)
    above: Scope | None = None
    function: Function | None = None
    shared: set[str] = field(default_factory=set)  # `global` and `nonlocal`

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.above
        return Plain.FOREIGN if hasattr(builtins, name) else None

    def put(self, name: str, value: Any) -> None:
        scope: Scope = self
        while name in scope.shared and scope.above is not None:
            scope = scope.above
        scope.names[name] = value


def joined(first: Any, second: Any) -> Any:
    """The value of something that may be either of two."""
    if first == second or second is Plain.NONE:
        return first
    if first is Plain.NONE:
        return second
    if isinstance(first, Thing) and isinstance(second, Thing):
        common = next(kind for kind in first.kind.__mro__ if issubclass(second.kind, kind))
        return None if common is object else Thing(common)
    return None


def functions_in(value: Any) -> Iterator[Function]:
    """The functions of the program that are called if a value is, or if each of a list is."""
    match value:
        case Function():
            yield value
        case Many(items=items):
            for one in items:
                yield from functions_in(one)
        case Item(kind=kind):
            for one in kind.families():
                for name in ("call", "__call__"):
                    yield from functions_in(one.names.get(name))


def item_of(value: Any) -> Any:
    """An item of a value that is iterated over or unpacked."""
    if isinstance(value, Many):
        found = value.items[0] if value.items else None
        for item in value.items[1:]:
            found = joined(found, item)
        return found
    if isinstance(value, Thing):
        return Plain.TENSOR if kinds.holds_arrays(value.kind) else None
    return value if isinstance(value, Plain) else None


def attribute_value(found: Any, owner: Any, name: str) -> Any:
    """An attribute that `kinds` found, as a value."""
    if found is kinds.METHOD:
        return Method(owner if isinstance(owner, Thing) else Thing(kinds.tensor()), name)
    if found is kinds.MISSING:
        # Little is certain about a value that may be a nest of arrays.
        if isinstance(owner, Thing) or kinds.is_noted(kinds.tensor(), name):
            return Method(owner if isinstance(owner, Thing) else Thing(kinds.tensor()), name)
        return Plain.FOREIGN if name in ("get", "items", "keys", "values") else None
    return None if found is Plain.FOREIGN else found


def is_added(classes: Collection[Class], kind: type, name: str) -> bool:
    """Whether one of the classes adds an attribute to `kind`: `self.model` may be of it."""
    bases = (one.base() for one in classes if name in one.names)
    return any(base is not None and issubclass(base, kind) for base in bases)


def instance_of(value: Any) -> Any:
    """An instance of what an annotation names."""
    if isinstance(value, Known) and isinstance(kind := kinds.find(value.path), type):
        return Plain.TENSOR if kind is kinds.tensor() else Thing(kind)
    return Item(value) if isinstance(value, Class) else None


def located(names: Collection[str], current: str, module: str, level: int) -> str | None:
    """The module that an import in one of them means.

    `names` are relative to the folder that holds all of them; `level` dots precede `module`.
    """
    if not module and not level:
        return None
    if level:
        above = current.split(".")[:-level]
        whole = ".".join([*above, *filter(None, [module])])
        return whole if whole in names else None
    folder = current.rpartition(".")[0]
    for name in (module, f"{folder}.{module}"):
        if name in names:
            return name
    # A folder below may be on `PYTHONPATH`.
    ends = [name for name in names if name.endswith(f".{module}")]
    return ends[0] if len(ends) == 1 else None
