"""Save models and modules: their programs, for any device, and their weights.

A folder has `saved_model.json` (the manifest), `weights.npz`, and one file for each program.
`jax.export` writes the programs with their gradients, for CPUs, GPUs and TPUs and for batches of
any size. The manifest describes their arguments and results: nests of specs, numbers, text, None.
The strategy is not saved: the current strategy at loading places the weights.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.folder import NewFolder
from replicax._core.placement import to_host
from replicax._function.concrete import ConcreteFunction, Spec
from replicax._function.function import BoundFunction, StatefulFunction
from replicax._keras import _compat
from replicax._keras.module import Module
from replicax._program.capture import evaluate

logger = logging.getLogger("replicax")

_FUNCTIONS = (ConcreteFunction, StatefulFunction, BoundFunction)
MANIFEST, WEIGHTS, FORMAT = "saved_model.json", "weights.npz", 2
SERVING = "serving_default"
PLATFORMS = ("cpu", "cuda", "tpu")
# A function of arrays of any number of axes is saved for 0 to MAX_AXES axes.
MAX_AXES = 4


@dataclass
class _Writer:
    """The content of a saved model, collected before anything is written."""

    variables: dict[int, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    known: dict[int, tuple[ConcreteFunction, list[str]]] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)
    objects: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def number(self, variable: Any) -> int:
        """Number a variable; the same variable keeps its number."""
        self.variables.setdefault(id(variable), variable)
        return list(self.variables).index(id(variable))

    def programs(self, concrete: ConcreteFunction) -> list[str]:
        """The keys of a function's programs. Each function is traced and written once."""
        if id(concrete) not in self.known:
            known = _of_known_axes(concrete) if concrete.inputs_unknown else [concrete]
            self.known[id(concrete)] = (concrete, [self.program(one) for one in known])
        return self.known[id(concrete)][1]

    def program(self, concrete: ConcreteFunction) -> str:
        traced = concrete.traced()
        captured, key = traced.captured, str(len(self.functions))
        values = [_compat.read(variable) for variable in captured.variables]
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        about = {
            "file": f"function_{key}.bin",
            "name": concrete.name,
            "parameters": concrete.parameters,
            "inputs": to_json(concrete.structured_input_signature),
            "outputs": to_json(concrete.structured_outputs),
            "written": list(captured.written),
        }
        self.files[f"function_{key}.bin"] = _exported(captured.jaxpr, shapes, traced.shapes)
        about["variables"] = [self.number(variable) for variable in captured.variables]
        self.functions[key] = about
        return key

    def object(self, obj: Any) -> int:
        """Number a module or a layer, and add its attributes."""
        if id(obj) in self.numbers:
            return self.numbers[id(obj)]
        number = self.numbers[id(obj)] = len(self.objects)
        self.objects.append({})
        found = {name: self.described(value) for name, value in _attributes(obj)}
        if isinstance(obj, _compat.Trainer) and (call := _call_of(obj)) is not None:
            found["serve"] = {"function": self.programs(call)}
        self.objects[number] = {
            "attributes": {name: about for name, about in found.items() if about is not None},
            "variables": [self.number(variable) for variable in getattr(obj, "variables", ())],
        }
        return number

    def described(self, value: Any) -> dict[str, Any] | None:
        """The manifest's entry for an attribute; None for a value that is not saved."""
        if isinstance(value, _compat.KerasVariable):
            return {"variable": self.number(value)}
        if isinstance(value, Module | keras.layers.Layer):
            return {"object": self.object(value)}
        if isinstance(value, _FUNCTIONS):
            keys = [key for one in _concretes(value) for key in self.programs_if_any(one, value)]
            return {"function": keys} if keys else None
        if isinstance(value, list | tuple):
            parts = [self.described(part) for part in value]
            return {"list": parts} if any(parts) else None
        if isinstance(value, dict):
            named = {key: part for key, part in value.items() if isinstance(key, str)}
            entries = [[key, self.described(part)] for key, part in named.items()]
            return {"dict": entries} if any(part for _, part in entries) else None
        return None

    def programs_if_any(self, concrete: ConcreteFunction, value: Any) -> list[str]:
        """The keys of a function's programs; none, with a warning, if a past call cannot be saved.

        A function with an input signature raises instead: the user asked for exactly that program.
        """
        try:
            return self.programs(concrete)
        except Exception as error:
            if isinstance(value, ConcreteFunction) or value.input_signature is not None:
                raise
            logger.warning("%r is not saved for one of its past calls: %s", concrete, error)
            return []


def save(obj: Any, export_dir: str, signatures: Any = None, options: Any = None) -> None:
    """Save the functions, variables and attributes of a model or a module.

    Compiled methods are saved for their `input_signature`, or else for their past calls. Modules,
    layers and variables are saved if they are attributes, or items of lists and dicts there.

    **Differs from TF:** the folder has a format of Replicax: `load` and `TFSMLayer` read it,
    TensorFlow does not. A function of arrays of any number of axes is saved for up to four axes.

    Args:
        obj: A Keras model, or an `rx.Module`. A model that was never called is saved without
            functions, with a warning.
        export_dir: The folder. A saved model that is there is replaced.
        signatures: A compiled function with an input signature, or a concrete function, or a dict
            of them by name. If None, the call of a model is saved as "serving_default".
        options: Ignored.

    Raises:
        UsageError: If there is nothing to save, or the folder holds something else.

    Example:
        >>> import keras, numpy as np, tempfile
        >>> import replicax as rx
        >>> from replicax._function import exporting, importing
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     exporting.save(model, folder + "/model")
        ...     loaded = importing.load(folder + "/model")
        >>> serve = loaded.signatures["serving_default"]
        >>> serve(np.ones((5, 3), "float32"))["output_0"].shape
        (5, 2)
    """
    writer = _Writer()
    writer.object(obj)
    serve = writer.objects[0]["attributes"].get("serve")
    entries = {name: writer.programs(fn) for name, fn in _signatures(signatures).items()}
    if signatures is None and serve and isinstance(obj, _compat.Trainer):
        entries = {SERVING: serve["function"]}
    if not (writer.functions or writer.variables or isinstance(obj, _compat.Trainer)):
        raise UsageError(
            f"Cannot save a {type(obj).__name__} without functions and variables. Pass a Keras "
            "model, or an `rx.Module` with `@rx.function(input_signature=…)` methods."
        )
    manifest = {
        "format": FORMAT,
        "functions": writer.functions,
        "signatures": entries,
        "objects": writer.objects,
        "variables": _described(writer.variables, obj),
    }
    weights = [to_host(_compat.read(variable)) for variable in writer.variables.values()]
    _write(Path(export_dir), manifest, weights, writer.files)


def _described(variables: dict[int, Any], obj: Any) -> list[dict[str, Any]]:
    trainable = {id(variable) for variable in getattr(obj, "trainable_variables", ())}
    return [
        {
            "path": variable.path,
            "dtype": _compat.stored_dtype(variable),
            "shape": list(variable.shape),
            "trainable": key in trainable,
        }
        for key, variable in variables.items()
    ]


def _call_of(model: Any) -> ConcreteFunction | None:
    try:
        specs = _compat.call_specs(model)
    except ValueError as error:
        logger.warning(
            "The model %r is saved without its call, because the shapes of its inputs are not "
            "known. %s Call it once, `model(example)`, or give it an `Input`.",
            model.name,
            error,
        )
        return None

    def serve(inputs: Any) -> Any:
        return model(inputs, training=False)

    def serve_several(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    called: Callable[..., Any] = serve if len(specs) == 1 else serve_several
    return ConcreteFunction(StatefulFunction(called), specs, {}, None)


def _attributes(obj: Any) -> list[tuple[str, Any]]:
    """The attributes and compiled methods of an object. Private attributes of Keras objects and
    functions that Keras set on them are left out."""
    methods = inspect.getmembers_static(type(obj), lambda m: isinstance(m, StatefulFunction))
    bound = [(name, getattr(obj, name)) for name, _ in methods]
    held = getattr(obj, "__dict__", {}).items()
    if not isinstance(obj, Module):
        held = [(n, v) for n, v in held if n[0] != "_" and not isinstance(v, _FUNCTIONS)]
    return [*bound, *held]


def _concretes(value: Any) -> list[ConcreteFunction]:
    """Concrete functions for the input signature, or else for the past calls."""
    if isinstance(value, ConcreteFunction):
        return [value]
    if not isinstance(value, StatefulFunction | BoundFunction):
        return []
    if value.input_signature is not None:
        return [value.get_concrete_function()]
    found = [value.get_concrete_function(*args, **kwargs) for args, kwargs in value.calls]
    return list({repr(one.structured_input_signature): one for one in found}.values())


def _of_known_axes(concrete: ConcreteFunction) -> list[ConcreteFunction]:
    """Concrete functions for each number of axes for which tracing succeeds."""
    found, last = [], None
    for count in range(MAX_AXES + 1):
        one = concrete.with_axes(count)
        try:
            one.structured_outputs  # noqa: B018  # traces it
            found.append(one)
        except Exception as error:
            last = error
    if not found:
        raise UsageError(
            f"Cannot save {concrete!r} for any number of axes: {last}. Give it a shape, as in "
            "`tf.TensorSpec([None, 3], tf.float32)`."
        ) from last
    return found


def _signatures(signatures: Any) -> dict[str, ConcreteFunction]:
    if signatures is None:
        return {}
    given = signatures if isinstance(signatures, dict) else {SERVING: signatures}
    found = {name: _concretes(value) for name, value in given.items()}
    for name, concretes in found.items():
        if len(concretes) != 1:
            raise UsageError(
                f"Cannot save signature {name!r}: {given[name]!r} was called with "
                f"{len(concretes)} signatures, "
                f"{[one.structured_input_signature for one in concretes]}. Pass "
                "`fn.get_concrete_function(tf.TensorSpec([None, 3], tf.float32))`, or decorate "
                "it with an `input_signature`."
            )
    return {name: concrete for name, (concrete,) in found.items()}


def _exported(jaxpr: Any, values: Sequence[Any], leaves: Sequence[Any]) -> bytes:
    program: Callable[..., Any] = jax.jit(lambda state, given: evaluate(jaxpr, *state, *given))
    try:
        exported = jax.export.export(program, platforms=PLATFORMS)(values, leaves)
    except NotImplementedError:
        logger.info("The program is saved for this platform only, as others lack an operation.")
        exported = jax.export.export(program)(values, leaves)
    try:
        return bytes(exported.serialize(vjp_order=1))
    except Exception as error:  # many types: only integer inputs, a loop of unknown length
        logger.debug("The saved program has no gradient: %s", error)
        return bytes(exported.serialize())


def _write(target: Path, manifest: Any, weights: Sequence[Any], files: dict[str, bytes]) -> None:
    with NewFolder(target, {MANIFEST}) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        # Raw bytes, because NumPy's file format has no bfloat16.
        raw = {str(n): np.frombuffer(w.tobytes(), np.uint8) for n, w in enumerate(weights)}
        np.savez(folder / WEIGHTS, **raw)  # pyright: ignore[reportArgumentType]
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


# Nests in the manifest.


def to_json(nest: Any) -> Any:
    if isinstance(nest, Spec):
        assert nest.shape is not None  # a traced program has known shapes
        return {"spec": [list(nest.shape), nest.dtype_name, nest.name]}
    if isinstance(nest, dict):
        return {"dict": [[key, to_json(value)] for key, value in nest.items()]}
    if isinstance(nest, list | tuple):
        kind = "tuple" if isinstance(nest, tuple) else "list"
        return {kind: [to_json(value) for value in nest]}
    if nest is None or isinstance(nest, bool | int | float | str):
        return {"value": nest}
    raise UsageError(
        f"Cannot save a function that takes or returns a {type(nest).__name__}. Use arrays, "
        "numbers, text, lists and dicts; keep it as an attribute, or pass its parts."
    )


def from_json(data: dict[str, Any]) -> Any:
    ((kind, content),) = data.items()
    if kind == "spec":
        return Spec(tuple(content[0]), jnp.dtype(content[1]), content[2])
    if kind == "dict":
        return {key: from_json(value) for key, value in content}
    if kind in ("list", "tuple"):
        values = [from_json(value) for value in content]
        return tuple(values) if kind == "tuple" else values
    return content


def specs_of(nest: Any) -> list[Spec]:
    return [leaf for leaf in jax.tree.leaves(nest) if isinstance(leaf, Spec)]


def filled(nest: Any, value: Callable[[Spec], Any]) -> Any:
    """Replace each spec of a nest by `value(spec)`, in order."""
    return jax.tree.map(lambda leaf: value(leaf) if isinstance(leaf, Spec) else leaf, nest)
