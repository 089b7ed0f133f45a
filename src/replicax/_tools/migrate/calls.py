"""Judges each call of a program: whether the function is there, and takes the arguments."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from replicax._tools.migrate import kinds
from replicax._tools.migrate.names import CHANGED, MISSING, WHOLE
from replicax._tools.migrate.reader import CALLED_BY_KERAS, Reader
from replicax._tools.migrate.values import (
    Class,
    Function,
    Home,
    Item,
    Known,
    Many,
    Method,
    Plain,
    Rest,
    Scope,
    Thing,
    functions_in,
)
from replicax.tf._absent import ABSENT, CHANGES, STEPS
from replicax.tf._keras2.arguments import Change, Given, LeftOut, Renamed

LOOK = "look"


@dataclass(frozen=True)
class Remark:
    """A remark on a call, an attribute or a method: `MISSING`, `CHANGED` or `LOOK`.

    `ends`: there is no advice.
    """

    kind: str
    text: str
    ends: bool = False


@dataclass
class Judged:
    """The findings in a module, each at a line of a piece."""

    uses: list[tuple[Home, int, str]] = field(default_factory=list)
    remarks: list[tuple[Home, int, Remark]] = field(default_factory=list)
    checked: int = 0
    unchecked: list[tuple[Home, int]] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


def judge(sources: Mapping[str, Sequence[tuple[Home, ast.Module]]]) -> dict[str, Judged]:
    """Judge the calls of modules that may import each other."""
    judging = _Judge(sources)
    judging.reader.read()
    for name, imports in judging.reader.imports.items():
        judging.found[name].imports.update(imports)
    judging.end()
    return judging.found


class _Judge:
    """Hears from the reader what it reads."""

    def __init__(self, sources: Mapping[str, Sequence[tuple[Home, ast.Module]]]) -> None:
        self.found = {name: Judged() for name in sources}
        self._module = {home: name for name, trees in sources.items() for home, _ in trees}
        self._lambdas, self._steps = Lambdas(), Steps()
        self.reader = Reader(sources, self)

    def end(self) -> None:
        for scope, line, text in self._lambdas.refused(self.reader.imports):
            self._say(scope, line, Remark(MISSING, f"`load_model`: {text}"))
        for scope, line, text in self._steps.refused():
            self._say(scope, line, Remark(MISSING, text))

    def _of(self, scope: Scope) -> Judged:
        return self.found[self._module[scope.home]]

    def _say(self, scope: Scope, line: int, remark: Remark) -> None:
        self._of(scope).remarks.append((scope.home, line, remark))

    def use(self, name: str, line: int, scope: Scope) -> None:
        if name not in WHOLE:
            self._of(scope).uses.append((scope.home, line, name))

    def attribute(self, found: Method, line: int, scope: Scope) -> None:
        kind = found.owner.kind
        if kinds.attribute(kind, found.name) is kinds.MISSING:
            hint = kinds.note(ABSENT, kind, f".{found.name}")
            own = "Tensor" if kind is kinds.tensor() else kind.__name__
            text = f"`{own}` has no `{found.name}`. {hint or ''}".strip()
            self._say(scope, line, Remark(MISSING, text, hint is None))

    def class_(self, found: Class, scope: Scope) -> None:
        base = found.base()
        if base is None:
            return
        self._steps.note_class(found.node)
        is_made_otherwise = any("__new__" in one.names for one in found.families())
        if kinds.holds_arrays(base) and not is_made_otherwise:
            text = f"`{found.node.name}`: a subclass of `{base.__name__}` has nothing to override."
            self._say(scope, found.node.lineno, Remark(MISSING, f"{text} Use `from_generator`."))
        methods = {one.name: one for one in found.node.body if isinstance(one, ast.FunctionDef)}
        rule = methods.get("update_step")
        given = len(rule.args.args) - len(rule.args.defaults) if rule else 4
        too_few = rule is not None and len(rule.args.args) < 4 and not rule.args.vararg
        for name, use in kinds.uncalled(base, set(methods), is_older=too_few or given > 4):
            text = f"`{found.node.name}.{name}` is never called. Override `{use}`."
            self._say(scope, methods[name].lineno, Remark(MISSING, text))

    def call(
        self,
        called: Any,
        node: ast.Call,
        values: Sequence[Any],
        named: Mapping[str | None, Any],
        scope: Scope,
    ) -> None:
        """Something is called."""
        self._steps.note(called, node, values, named, scope)
        own = self._of(scope)
        match called:
            case Known(path=path):
                function = kinds.find(path)
                if function is None:  # its name is missing
                    own.checked += 1
                    return
                self._lambdas.note(path, node, self._module[scope.home], scope)
                kind = function if isinstance(function, type) else None
                self._fit(function, kind, path, "" if kind else path, node, named, scope)
            case Method(owner=owner, name=name):
                if kinds.attribute(owner.kind, name) is kinds.MISSING:
                    own.checked += 1
                    return
                function = inspect.getattr_static(owner.kind, name)
                bound = isinstance(function, classmethod)
                function = getattr(owner.kind, name)
                label = f"{owner.kind.__name__}.{name}"
                first = 0 if bound or inspect.ismethod(function) else 1
                if name == "__init__":  # a class also shows its bases' arguments
                    self._fit(owner.kind, owner.kind, label, "", node, named, scope)
                    return
                self._fit(function, owner.kind, label, f".{name}", node, named, scope, first=first)
            case Class():
                base = called.base()
                if base is not None:
                    own.checked += 1
                    if not any("__init__" in one.names for one in called.families()):
                        own.checked -= 1
                        self._fit(base, base, called.node.name, "", node, named, scope)
            case Thing(kind=kind):
                if callable(getattr(kind, "__call__", None)):  # noqa: B004  of its instances
                    own.checked += 1
                else:
                    own.unchecked.append((scope.home, node.lineno))
            case Item(kind=kind, above=False):
                own.checked += kind.base() is not None
            case Plain.FOREIGN if named.get("p") is Plain.TENSOR:
                if ast.unparse(node.func).endswith("random.choice"):
                    self._say(scope, node.lineno, Remark(MISSING, _CHOICE))
            case None | Plain.TENSOR:
                own.unchecked.append((scope.home, node.lineno))
                name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if name in _TELLING:
                    self._say(scope, node.lineno, Remark(LOOK, f"`{name}`: {_TELLING[name]}"))

    def _fit(
        self,
        function: Any,
        kind: type | None,
        label: str,
        path: str,
        node: ast.Call,
        given: Mapping[str | None, Any],
        scope: Scope,
        *,
        first: int = 0,
    ) -> None:
        own = self._of(scope)
        named = {one.arg: one.value for one in node.keywords}
        names = [name for name in named if name is not None]
        rest = given.get(None)
        if isinstance(rest, Rest) and rest.node in self.reader.rest:
            names += self.reader.rest[rest.node] - set(names)
            named.pop(None)
        is_open = None in named or any(isinstance(one, ast.Starred) for one in node.args)
        older = kinds.older(kind, path)
        for name in set(names) & set(older):
            remark = _of_older(older[name], name, named.get(name), is_method=bool(path))
            if remark is not None:
                argument = Remark(remark[0], f"`{label}({name}=…)`: {remark[1]}")
                self._say(scope, node.lineno, argument)
        known = [name for name in names if name not in older or isinstance(older[name], Given)]
        if not node.args:
            known += [name for name, one in older.items() if isinstance(one, Given)]
        known = list(dict.fromkeys(known))
        texts = kinds.misfits(function, kind, path, len(node.args) + first, known, is_open=is_open)
        if texts is None or (is_open and not texts):
            own.unchecked.append((scope.home, node.lineno))
        else:
            own.checked += 1
        for text in texts or ():
            self._say(scope, node.lineno, Remark(MISSING, f"`{label}` {text}"))
        for name in names:
            value = ast.unparse(named[name]) if name in named else ""
            for key in (f"{path}({name})", f"{path}({name}={value})"):
                text = kinds.note(CHANGES, kind, key) if kind else CHANGES.get(key)
                if text:
                    self._say(scope, node.lineno, Remark(CHANGED, f"`{label}({name}=…)`: {text}"))


def _of_older(
    change: Change, name: str, value: ast.expr | None, *, is_method: bool
) -> tuple[str, str] | None:
    """The fate of an argument of Keras 2, if that is worth telling."""
    match change, value:
        case Renamed(name=new), _:
            return CHANGED, f"It is `{new}`."
        case LeftOut(values=()), _:
            return (CHANGED, "Has no effect.") if is_method else None  # layers compute the same
        case LeftOut(values=allowed), ast.Constant(value=given) if given not in allowed:
            return MISSING, f"Keras 3 has no `{name}={given!r}`."
    return None


# Methods that only one class has had, so that unknown values count, too.
_TELLING = {
    name.rpartition(".")[2]: text
    for name, text in ABSENT.items()
    if name.endswith(("_generator", "_iterator", "_run_v2", "_output_at", "_input_at"))
}
_CHOICE = (
    "`random.choice` adds up a tensor's 32-bit probabilities in 64 bits, which seldom gives 1. "
    "Pass `p=np.asarray(…)`."
)
_TELLING["variables"] = "Of an optimizer it is a property: leave out the parentheses."


_BUILT_IN = "tf.keras.activations"  # Keras finds them by their names
_REGISTERING = (
    *("register_keras_serializable", "get_custom_objects"),
    *("custom_object_scope", "CustomObjectScope"),
)
LAYER, LOAD = "tf.keras.layers.Lambda", "tf.keras.models.load_model"


class Lambdas:
    """The `Lambda` layers of models of a program, and the calls that load a model."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[str, str]] = {}  # by module: names, as they are written
        self._loads: list[tuple[str, Scope, ast.Call]] = []
        self._registers = False  # functions, for all files

    def note(self, path: str, node: ast.Call, module: str, scope: Scope) -> None:
        self._registers |= path.endswith(_REGISTERING)
        if path == LOAD:
            self._loads.append((module, scope, node))
        # A layer made by a layer's method is in no file.
        elif path == LAYER and not (scope.function and scope.function.owner):
            given = [*node.args, *(one.value for one in node.keywords if one.arg == "function")]
            if given and isinstance(given[0], ast.Lambda | ast.Name | ast.Attribute):
                source = "" if isinstance(given[0], ast.Lambda) else ast.unparse(given[0])
                self._functions.setdefault(module, {})[source.rpartition(".")[2]] = source

    def refused(self, imports: Mapping[str, set[str]]) -> Iterator[tuple[Scope, int, str]]:
        """Yield where a load is refused, and what to pass."""
        for module, scope, node in self._loads:
            seen, ahead = set[str](), [module]
            while ahead:
                one = ahead.pop()
                if one not in seen:
                    seen.add(one)
                    ahead += imports.get(one, ())
            functions = {}
            for one in seen:
                functions |= self._functions.get(one, {})
            named = {one.arg: one.value for one in node.keywords}
            if None in named or len(node.args) > 1:
                continue
            if "" in functions and "safe_mode" not in named:
                text = "A `lambda` of a layer is read from a file only with `safe_mode=False`."
                yield scope, node.lineno, text
            given = named.get("custom_objects", ast.Dict([], []))
            keys = given.keys if isinstance(given, ast.Dict) else [None]
            known = {key.value for key in keys if isinstance(key, ast.Constant)}
            if self._registers or len(known) < len(keys):
                continue
            missing = sorted(functions.keys() - known - {""} - set(kinds.public(_BUILT_IN)))
            if missing:
                entries = ", ".join(f'"{name}": {functions[name]}' for name in missing)
                text = (
                    f"The function of a `Lambda` layer is passed: `custom_objects={{{entries}}}`."
                )
                yield scope, node.lineno, text


_COMPILED = {*CALLED_BY_KERAS, "__call__", "compute_metrics"} - {"build", "compute_output_shape"}
_FITTING = {"evaluate", "fit", "predict", "test_on_batch", "train_on_batch"}
_ON_HOST = ("numpy_function", "py_function")


class Steps:
    """The functions that compiled steps call, and the calls that such a step cannot compute."""

    def __init__(self) -> None:
        self._calls: list[tuple[Any, tuple[Scope, int, str]]] = []  # with their functions
        self._called: dict[Any, set[Any]] = {}  # by function
        self._of_fit, self._of_run, self._of_own_steps = set[Any](), set[Any](), set[Any]()
        self._fits = self._distributes = False

    def note_class(self, node: ast.ClassDef) -> None:
        """Note the methods that Keras calls in a step."""
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and one.name in _COMPILED:
                own = one.name.endswith("_step") and one.name != "update_step"
                (self._of_own_steps if own else self._of_fit).add(one)

    def note(
        self,
        called: Any,
        node: ast.Call,
        values: Sequence[Any],
        named: Mapping[str | None, Any],
        scope: Scope,
    ) -> None:
        given = {one.node for one in functions_in(Many((*values, *named.values())))}
        caller = scope.function.node if scope.function else None
        inner = self._called.setdefault(caller, set())
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        match called:
            case Function() | Item():
                inner.update(given, (one.node for one in functions_in(called)))
            case Known(path=path) if not path.endswith(_ON_HOST):
                inner.update(given)
                self._of_fit.update(given if path == LAYER else ())
                self._distributes |= path.startswith("tf.distribute.")
                text = _of_values(path.replace("tf.compat.v1.", "tf."), node)
                if text and Plain.FOREIGN not in values[:1]:
                    self._calls.append((caller, (scope, node.lineno, text)))
            case Method() | None if name == "compile":
                self._of_fit.update(given)
            case Method() | None if name in _FITTING:
                self._fits = True
            case Method(owner=Thing(kind=kind)) if "tf.distribute.Strategy" in kinds.labels(kind):
                self._of_run.update(given if name == "run" else ())
            case None if ast.unparse(node.func).endswith("strategy.run"):
                self._of_run.update(given)

    def refused(self) -> Iterator[tuple[Scope, int, str]]:
        """Yield the calls in compiled steps, and what to write there."""
        seen, ahead = set[Any](), list(self._of_run)
        if self._fits:  # without a strategy, a step of a model's own runs as plain Python
            ahead += [*self._of_fit, *(self._of_own_steps if self._distributes else ())]
        while ahead:
            one = ahead.pop()
            if one not in seen:
                seen.add(one)
                ahead += self._called.get(one, ())
        yield from (found for function, found in self._calls if function in seen)


def _of_values(path: str, node: ast.Call) -> str | None:
    """What to write for a call in a step whose result has a shape that depends on values."""
    for key in (key for key in STEPS if key.partition("(")[0] == path):
        needed = key.partition("(")[2].rstrip(")")
        place = list(inspect.signature(kinds.find(path)).parameters).index(needed) if needed else 0
        named = {one.arg for one in node.keywords}
        if not needed or (len(node.args) <= place and not named & {needed, None}):
            return f"`{path}`: the shape of its result depends on values. {STEPS[key]}"
    return None
