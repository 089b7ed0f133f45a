"""Models with `Lambda` layers, whose functions Keras 3 does not load by itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, final

from replicax._tools.migrate import kinds

if TYPE_CHECKING:
    from replicax._tools.migrate.values import Scope

_BUILT_IN = "tf.keras.activations"  # Keras finds them by their names
_REGISTERING = (
    *("register_keras_serializable", "get_custom_objects"),
    *("custom_object_scope", "CustomObjectScope"),
)
LAYER, LOAD = "tf.keras.layers.Lambda", "tf.keras.models.load_model"


@final
class Lambdas:
    """The `Lambda` layers of models of a program, and the calls that load a model."""

    def __init__(self) -> None:
        self._functions: dict[str, dict[str, str]] = {}  # by module: names, as they are written
        self._loads: list[tuple[str, Scope, ast.Call]] = []
        self._registers = False  # functions, for all files

    def note(self, path: str, node: ast.Call, module: str, scope: Scope) -> None:
        """A layer is made, or a model loaded."""
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
