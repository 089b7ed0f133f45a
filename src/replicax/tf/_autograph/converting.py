"""Functions rewritten by malt, compiled as if they stood in the user's file."""

from __future__ import annotations

import ast
import inspect
import threading
import types
from collections.abc import Callable
from typing import Any, final
from weakref import WeakKeyDictionary

from malt.core import converter
from malt.impl import api
from malt.lang.directives import set_loop_options as set_loop_options
from malt.pyct import anno, transpiler

from replicax.tf._autograph import operators
from replicax.tf._autograph.staged import FLAGS


@final
class _Source(api.PyToPy):
    def transform_function(self, fn: Any, user_context: Any) -> Any:
        return transpiler.GenericTranspiler.transform_function(self, fn, user_context)

    def transform_ast(self, node: Any, ctx: Any) -> Any:
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef):
                _return_at_the_end(inner)
        return _guarded(super().transform_ast(_Asserts().visit(node), ctx))


@final
class _Asserts(ast.NodeTransformer):
    """`assert` as a call; malt's own takes no message that is computed."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        call: Any = ast.parse("ag__.assert_stmt(0, lambda: 0)").body[0]
        message = node.msg or ast.Constant(None)
        call.value.args[0], call.value.args[1].body = node.test, message
        for new in ast.walk(call):
            if not anno.hasanno(new, anno.Basic.ORIGIN):
                anno.copyanno(node, new, anno.Basic.ORIGIN)
        return call


def _guarded(tree: Any) -> Any:
    """Mark the `if` that malt makes of a `return`, `break` or `continue`: it skips what follows."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="if_stmt") as called,
                args=[ast.Call(func=ast.Attribute(attr="not_"), args=[ast.Name(id=flag)]), *_],
            ) if flag.startswith(FLAGS):
                called.attr = "guard_stmt"
    return tree


def _return_at_the_end(node: ast.FunctionDef) -> None:
    """Write out the `return None` of functions that return something on other paths."""
    own: list[Any] = [*node.body]
    values: list[Any] = []
    for inner in own:
        if isinstance(inner, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            continue
        values += [inner] if isinstance(inner, ast.Return) and inner.value else []
        own.extend(ast.iter_child_nodes(inner))
    if values and not isinstance(node.body[-1], ast.Return):
        last = ast.Return(ast.Constant(None))
        for new in ast.walk(last):
            anno.copyanno(values[0], new, anno.Basic.ORIGIN)
        node.body.append(last)


_known: WeakKeyDictionary[types.CodeType, Any] = WeakKeyDictionary()
_lock = threading.RLock()


def tree_of(fn: Any) -> tuple[Any, str]:
    """The rewritten syntax tree of a function, and the name that it defines."""
    if hasattr(fn, "__wrapped__"):  # `inspect` would look at what a decorator was given
        fn = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, None, fn.__closure__)
    options = converter.ProgramContext(options=converter.STANDARD_OPTIONS)
    try:
        node, context = _Source().transform(fn, options)
    finally:
        for shared in filter(_is_shared, ast.walk(ast.parse(_ALL_SHARED))):
            vars(shared).clear()  # malt's notes, which `ast.dump` would show for all trees
    name = context.info.name
    if isinstance(node, ast.Lambda):
        target = ast.Name(name, ctx=ast.Store())
        node = ast.Assign(targets=[target], value=node)
    else:
        node.name = name
    return node, name


def converted(fn: Any) -> Callable[..., Any]:
    """The function with our operators for its control flow: rewritten once for all of its code."""
    with _lock:
        factory = _known.get(fn.__code__)
        if factory is None:
            factory = _known[fn.__code__] = _factory(fn)
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in factory.co_freevars)
    new = types.FunctionType(factory, fn.__globals__, "factory", (), closure)(operators)
    new.__defaults__, new.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    new.__code__ = new.__code__.replace(co_name=fn.__name__, co_qualname=fn.__qualname__)
    new.__name__, new.__qualname__, new.__module__ = fn.__name__, fn.__qualname__, fn.__module__
    return api.autograph_artifact(new)


def _factory(fn: Any) -> types.CodeType:
    node, name = tree_of(fn)
    closure = "".join(f"    {free} = None\n" for free in fn.__code__.co_freevars)
    text = f"def outer():\n{closure}    def inner(ag__):\n        return {name}\n    return inner\n"
    module = ast.parse(text)
    outer: Any = module.body[0]
    outer.body[-2].body.insert(0, node)
    _relocate(module, fn.__code__.co_firstlineno)
    code, scope = fn.__code__, {}
    flags = code.co_flags & annotations.compiler_flag
    exec(compile(module, code.co_filename, "exec", flags=flags, dont_inherit=True), scope)
    return scope["outer"]().__code__


def _is_shared(node: ast.AST) -> bool:
    """Whether Python has one node of this kind for all trees."""
    kinds = ast.expr_context | ast.operator | ast.boolop | ast.unaryop | ast.cmpop
    return isinstance(node, kinds)


_ALL_SHARED = """
del a
a = not a and a or +a - ~a + -a * a / a // a % a ** a @ a << a >> a & a | a ^ a
a < a <= a > a >= a == a != a is a is not a in a not in a
"""


def _relocate(node: ast.AST, line: int) -> None:
    """Give each node the line that it comes from, so that tracebacks show the user's file."""
    origin: Any = anno.getanno(node, anno.Basic.ORIGIN, default=None)
    line = line if origin is None else origin.loc.lineno
    place: Any = node
    place.lineno = place.end_lineno = line
    place.col_offset = place.end_col_offset = 0
    for child in ast.iter_child_nodes(node):
        if not _is_shared(child):
            _relocate(child, line)


def code_of(fn: Any) -> str:
    """The rewritten source of a function."""
    return ast.unparse(ast.fix_missing_locations(tree_of(inspect.unwrap(fn))[0]))
