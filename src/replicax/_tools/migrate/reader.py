"""Reads a program's text as it would run, and infers which values are TensorFlow's and Keras'.

Assignments, attributes of `self`, results of the program's functions, and their arguments are
followed until nothing changes. An unknown value is None, and is never judged.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from replicax._tools.migrate import kinds
from replicax._tools.migrate.names import whole_name
from replicax._tools.migrate.values import (
    Class,
    File,
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
    attribute_value,
    functions_in,
    instance_of,
    is_added,
    item_of,
    joined,
    located,
)

CALLED_BY_KERAS = (
    "build", "call", "compute_loss", "compute_output_shape", "predict_step", "result", "test_step",
    "train_step", "update_state", "update_step",
)  # fmt: skip
_PASSES = 6  # values get one call further in each pass


class Reader:
    """Reads all files of a folder together, since they import each other.

    A notebook has a tree for each cell. `listener` is told of names that are used, attributes,
    calls and classes.
    """

    def __init__(
        self, sources: Mapping[str, Sequence[tuple[Home, ast.Module]]], listener: Any
    ) -> None:
        self._sources = sources
        self._names = {home: name for name, trees in sources.items() for home, _ in trees}
        self._listener = listener
        self._is_last = False
        self._facts: dict[tuple[Any, str], Any] = {}  # of the pass before
        self._found: dict[tuple[Any, str], Any] = {}
        self._modules: dict[str, Scope] = {}
        self._waiting: list[Function] = []
        self._scope, self._classes = Scope(("", None, 0)), list[Class]()
        self.rest: dict[Any, set[str]] = {}  # the keywords that go into a function's `**kwargs`
        self.given: set[str] = set()  # attributes that the program gives to anything
        self.imports: dict[str, set[str]] = {name: set() for name in sources}

    def read(self) -> None:
        """Read until nothing changes, then once more while the listener hears everything."""
        for _ in range(_PASSES):
            self._pass()
            if self._found == self._facts:
                break
            self._facts = self._found
        self._is_last = True
        self._pass()

    def _pass(self) -> None:
        self._found, self._waiting, self._modules, self._classes = {}, [], {}, []
        for name in self._sources:
            self._module(name)
        for function in self._waiting:  # the list grows meanwhile
            self._body(function)

    def _module(self, name: str) -> Scope:
        if name in self._modules:
            return self._modules[name]
        outer = self._scope
        scope = self._modules[name] = Scope(("", None, 0))
        for home, tree in self._sources[name]:
            scope.home = home
            self._scope = Scope(home, scope.names)  # functions keep the cell that they are in
            self._block(tree.body)
        self._scope = outer
        return scope

    def _body(self, function: Function) -> None:
        node, scope = function.node, Scope(function.scope.home, {}, function.scope, function)
        self._scope = scope
        arguments = node.args
        listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for index, one in enumerate(listed):
            value = self._facts.get((node, one.arg))
            annotated = instance_of(self._value(one.annotation)) if one.annotation else None
            scope.names[one.arg] = annotated or value
            if index == 0 and function.owner is not None and "staticmethod" not in function.marks():
                is_class = "classmethod" in function.marks()
                scope.names[one.arg] = function.owner if is_class else Item(function.owner)
        if arguments.vararg is not None:
            scope.names[arguments.vararg.arg] = Many((None,), is_exact=False)
        if arguments.kwarg is not None:
            scope.names[arguments.kwarg.arg] = Rest(node)
        if isinstance(node, ast.Lambda):
            self._note(node, "return", self._value(node.body))
        else:
            self._block(node.body)

    def _note(self, owner: Any, name: str, value: Any) -> None:
        before = self._found.get((owner, name), value)
        self._found[owner, name] = joined(before, value)

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                parts = [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
                every = ast.walk(node.args)
                annotations = [one.annotation for one in every if isinstance(one, ast.arg)]
                for part in [*parts, *annotations, node.returns]:
                    self._value(part)
                self._scope.put(node.name, self._function(node, None))
            case ast.ClassDef():
                self._class(node)
            case ast.Return():
                value = self._value(node.value) if node.value else Plain.NONE
                if self._scope.function is not None:
                    self._note(self._scope.function.node, "return", value)
            case ast.Assign():
                value = self._value(node.value)
                for target in node.targets:
                    self._assign(target, value)
            case ast.AnnAssign():
                annotated = instance_of(self._value(node.annotation))
                value = self._value(node.value)
                if node.value is not None or annotated:
                    self._assign(node.target, annotated or value)
            case ast.For() | ast.AsyncFor():
                self._assign(node.target, item_of(self._value(node.iter)))
                self._block([*node.body, *node.orelse])
            case ast.If():
                self._value(node.test)
                before = dict(self._scope.names)
                self._block(node.body)
                after = dict(self._scope.names)
                self._scope.names.clear()
                self._scope.names.update(before)
                self._block(node.orelse)
                for name, value in after.items():
                    own = self._scope.names
                    own[name] = joined(value, own[name]) if name in own else value
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    value = self._value(item.context_expr)
                    if item.optional_vars is not None:
                        kept = isinstance(value, Item | Plain) or kinds.enters_itself(value)
                        self._assign(item.optional_vars, value if kept else None)
                self._block(node.body)
            case ast.Import() | ast.ImportFrom():
                self._import(node)
            case ast.Global() | ast.Nonlocal():
                self._scope.shared.update(node.names)
            case _:
                self._parts(node)

    def _parts(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                self._statement(child)
            elif isinstance(child, ast.expr):
                self._value(child)
            else:  # handlers, cases, keywords
                self._parts(child)

    def _function(self, node: Any, owner: Class | None) -> Function:
        self._waiting.append(Function(node, self._scope, owner))
        return self._waiting[-1]

    def _class(self, node: ast.ClassDef) -> None:
        for part in [*node.decorator_list, *(one.value for one in node.keywords)]:
            self._value(part)
        self._classes.append(found := Class(node, {}, tuple(map(self._value, node.bases))))
        self._scope.put(node.name, found)
        outer = self._scope
        inside = Scope(outer.home, found.names, outer, outer.function)
        for statement in node.body:
            self._scope = inside
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                for part in [*statement.decorator_list, *statement.args.defaults]:
                    self._value(part)
                self._scope = outer  # a method does not see its class's names
                found.names[statement.name] = self._function(statement, found)
                self._given_by_keras(found, statement)
            else:
                self._statement(statement)
        self._scope = outer
        if self._is_last:
            self._listener.class_(found, outer)

    def _given_by_keras(self, owner: Class, method: Any) -> None:
        """Note the arguments with which Keras calls an overridden method."""
        base = owner.base()
        is_event = method.name.startswith("on_")
        if base is not None and (is_event or method.name in CALLED_BY_KERAS):
            value = Plain.FOREIGN if is_event else Plain.TENSOR
            for one in method.args.args[1:]:
                self._note(method, one.arg, value)

    def _assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._scope.put(name, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    exact = isinstance(value, Many) and value.is_exact
                    same = exact and len(value.items) == len(parts)
                    self._assign(part, value.items[index] if same else item_of(value))
            case ast.Starred(value=inner):
                self._assign(inner, None)
            case ast.Attribute(value=owner, attr=name):
                found = self._value(owner)
                self.given.add(name)
                if isinstance(found, Item):
                    self._note(found.kind.node, name, value)
            case _:
                self._value(target)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                local = alias.asname or alias.name.partition(".")[0]
                name = whole_name(alias.name)
                if name is not None:
                    self._use(name, node)
                    bound = name if alias.asname else name.partition(".")[0]
                    self._scope.put(local, Known(bound, imported=True))
                else:
                    file = self._file(alias.name, 0)
                    whole = alias.asname or "." not in alias.name
                    own = File(file) if whole and file else None
                    self._scope.put(local, own or (None if file else Plain.FOREIGN))
            return
        module = None if node.level else whole_name(node.module or "")
        for alias in node.names:
            local = alias.asname or alias.name
            if module is not None:
                name = module if alias.name == "*" else f"{module}.{alias.name}"
                self._use(name, node)
                if alias.name != "*":
                    self._scope.put(local, Known(name, imported=True))
                for public in kinds.public(module) if alias.name == "*" else ():
                    self._scope.put(public, Known(f"{module}.{public}", imported=True))
                continue
            below = ".".join(filter(None, [node.module, alias.name]))
            file = self._file(node.module or "", node.level)
            inner = self._file(below, node.level)
            if inner:
                self._scope.put(local, File(inner))
            elif file and alias.name == "*":
                self._scope.names.update(self._module(file).names)
            elif file:
                self._scope.put(local, self._module(file).names.get(alias.name))
            elif alias.name != "*":
                self._scope.put(local, None if node.level else Plain.FOREIGN)

    def _file(self, module: str, level: int) -> str | None:
        """The module of the program that an import means."""
        current = self._names[self._scope.home]
        found = located(self._sources, current, module, level)
        if found is not None:
            self.imports[current].add(found)
        return found

    def _use(self, name: str, node: Any) -> None:
        if self._is_last:
            self._listener.use(name, node.lineno, self._scope)

    def _value(self, node: ast.expr | None, *, inner: bool = False) -> Any:
        """The value of an expression; `inner` if it is the left part of a longer name."""
        match node:
            case ast.Name(id=name):
                found = self._scope.find(name)
                is_whole = isinstance(found, Known) and found.imported and "." in found.path
                if is_whole and not inner and isinstance(node.ctx, ast.Load):
                    self._use(found.path, node)
                return found
            case ast.Attribute():
                return self._attribute(node, inner=inner)
            case ast.Call():
                return self._call(node)
            case ast.Constant(value=value):
                return Plain.NONE if value is None else Plain.FOREIGN
            case ast.JoinedStr() | ast.Dict() | ast.Set() | ast.BoolOp():
                values = [self._value(part) for part in _expressions(node)]
                if isinstance(node, ast.BoolOp):
                    return item_of(Many(tuple(values)))
                if isinstance(node, ast.Dict):
                    return Many((None,), is_exact=False)
                return Plain.TENSOR if Plain.TENSOR in values else Plain.FOREIGN
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                items = tuple(self._value(part) for part in parts)
                return Many(items, not any(isinstance(part, ast.Starred) for part in parts))
            case ast.Starred(value=value):
                return item_of(self._value(value))
            case ast.Subscript(value=value, slice=index):
                self._value(index)
                found = self._value(value)
                match found, index:
                    case Many(items=items, is_exact=True), ast.Constant(value=int() as place):
                        return items[place] if -len(items) <= place < len(items) else None
                return item_of(found) if not isinstance(index, ast.Slice) else found
            case ast.BinOp() | ast.UnaryOp() | ast.Compare():
                values = {self._value(part) for part in _expressions(node)}
                if Plain.TENSOR in values:
                    return Plain.TENSOR
                return Plain.FOREIGN if values == {Plain.FOREIGN} else None
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self._value(test)
                return joined(self._value(body), self._value(orelse))
            case ast.NamedExpr(target=target, value=value):
                found = self._value(value)
                self._assign(target, found)
                return found
            case ast.Lambda():
                return self._function(node, None)
            case ast.Await(value=value):
                return self._value(value)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                return self._comprehension(node)
            case None:
                return None
        self._parts(node)
        return None

    def _comprehension(self, node: Any) -> Any:
        outer = self._scope
        self._scope = Scope(outer.home, {}, outer, outer.function)
        for loop in node.generators:
            self._assign(loop.target, item_of(self._value(loop.iter)))
            for test in loop.ifs:
                self._value(test)
        if isinstance(node, ast.DictComp):
            self._value(node.key)
            self._value(node.value)
            found = Many((None,), is_exact=False)
        else:
            found = Many((self._value(node.elt),), is_exact=False)
        self._scope = outer
        return found

    def _attribute(self, node: ast.Attribute, *, inner: bool) -> Any:
        owner, name = self._value(node.value, inner=True), node.attr
        if isinstance(owner, Known):
            if not inner:
                self._use(f"{owner.path}.{name}", node)
            return Known(f"{owner.path}.{name}")
        found = self._attribute_of(owner, name)
        if isinstance(found, Method) and self._is_last:
            self._listener.attribute(found, node.lineno, self._scope)
        return found

    def _attribute_of(self, owner: Any, name: str) -> Any:
        match owner:
            case File(name=file):
                inner = f"{file}.{name}"
                return File(inner) if inner in self._sources else self._module(file).names.get(name)
            case Item(kind=kind, above=above):
                return self._of_item(owner, kind, name, above=above)
            case Class() as kind:
                return next((c.names[name] for c in kind.families() if name in c.names), None)
            case Thing(kind=kind):
                if name in self.given or is_added(self._classes, kind, name):
                    return None
                return attribute_value(kinds.attribute(kind, name), owner, name)
            case Many() | Plain.FOREIGN:
                return Plain.FOREIGN
            case Plain.TENSOR:
                return attribute_value(kinds.attribute(kinds.tensor(), name), owner, name)
        return None

    def _of_item(self, owner: Item, kind: Class, name: str, *, above: bool) -> Any:
        families = list(kind.families())[1 if above else 0 :]
        for one in families:
            if name in one.names:
                found = one.names[name]
                if isinstance(found, Function):
                    if found.marks() & {"property", "cached_property"}:
                        return self._facts.get((found.node, "return"))
                    return Function(found.node, found.scope, found.owner, Item(kind))
                return found
        for one in families:
            if (one.node, name) in self._facts:
                return self._facts[one.node, name]
        base, bases = kind.base(), {b for one in kind.families() for b in one.bases}
        if base is None:
            return Plain.FOREIGN if Plain.FOREIGN in bases and None not in bases else None
        if (None in bases or name in self.given) and not hasattr(base, name):
            return None
        return attribute_value(kinds.attribute(base, name), Thing(base), name)

    def _call(self, node: ast.Call) -> Any:
        called = self._value(node.func)
        values = [self._value(part) for part in node.args]
        named = {part.arg: self._value(part.value) for part in node.keywords}
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            owner = self._scope.function and self._scope.function.owner
            return Item(owner, above=True) if owner is not None else None
        if self._is_last:
            self._listener.call(called, node, values, named, self._scope)
        if called == Known("tf.function"):
            return values[0] if values else Known("tf.identity_decorator")
        if isinstance(called, Known | Method | Thing):
            self._hand_over(values, named)
        return self._result(called, node, values, named)

    def _hand_over(self, values: Sequence[Any], named: Mapping[str | None, Any]) -> None:
        """Note the arguments with which TensorFlow's methods call functions of the program."""
        given = named.get("args", values[1] if len(values) > 1 else None)
        for function in functions_in(Many((*values, *named.values()))):
            skip = int(function.owner is not None)
            for index, one in enumerate(function.node.args.args[skip:]):
                exact = isinstance(given, Many) and given.is_exact and index < len(given.items)
                self._note(function.node, one.arg, given.items[index] if exact else Plain.TENSOR)

    def _result(
        self, called: Any, node: ast.Call, values: list[Any], named: dict[str | None, Any]
    ) -> Any:
        match called:
            case Known(path=path):
                found = kinds.find(path)
                is_kind = isinstance(found, type)
                return Thing(found) if is_kind else kinds.returned(found, path, None)
            case Method(owner=owner, name=name):
                return kinds.returned(getattr(owner.kind, name, None), name, owner.kind)
            case Thing() | Plain.TENSOR:
                return Plain.TENSOR
            case Function():
                self._bind(called, values, named)
                return self._facts.get((called.node, "return"))
            case Class():
                init = self._of_item(Item(called), called, "__init__", above=False)
                if isinstance(init, Function):
                    self._bind(init, values, named)
                return Item(called)
            case Item(kind=kind):
                for name in ("call", "__call__"):
                    method = self._of_item(called, kind, name, above=False)
                    if isinstance(method, Function):
                        self._bind(method, values, named)
                        return self._facts.get((method.node, "return")) or Plain.TENSOR
                return Plain.TENSOR if kind.base() else None
            case Plain.FOREIGN:
                match node.func, values:
                    case ast.Name(id="iter" | "list" | "tuple" | "sorted" | "reversed"), [one]:
                        kept = not isinstance(one, Thing)  # `iter` has methods of its own
                        return one if kept else Many((item_of(one),), is_exact=False)
                    case ast.Name(id="next"), [one, *_]:
                        return item_of(one)
                    case ast.Name(id="enumerate"), [one, *_]:
                        return Many((Many((Plain.FOREIGN, item_of(one))),), is_exact=False)
                    case ast.Name(id="zip"), _:
                        row = Many(tuple(map(item_of, values)))
                        return Many((row,), is_exact=False)
                    case ast.Name(id="map" | "filter" | "getattr" | "min" | "max"), _:
                        return None
                    case ast.Attribute(attr=n), [Plain.TENSOR, *_] if n in kinds.ASKING:
                        return Plain.TENSOR
                return Plain.FOREIGN
        return None

    def _bind(self, function: Function, values: list[Any], named: dict[str | None, Any]) -> None:
        """Note the arguments of a function of the program."""
        arguments = function.node.args
        listed = [*arguments.posonlyargs, *arguments.args]
        is_method = function.owner is not None and "staticmethod" not in function.marks()
        listed = listed[1:] if is_method and function.item is not None else listed
        for one, value in zip(listed, values, strict=False):
            self._note(function.node, one.arg, value)
        for one in [*listed, *arguments.kwonlyargs]:
            if one.arg in named:
                self._note(function.node, one.arg, named[one.arg])
        known = {one.arg for one in [*listed, *arguments.kwonlyargs]}
        self.rest.setdefault(function.node, set()).update(
            name for name in named if name is not None and name not in known
        )


def _expressions(node: ast.AST) -> list[ast.expr]:
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
