"""Saving what models and modules compute: programs for any device, and the weights.

A folder has `saved_model.json` (what there is), `weights.npz`, and one file for each function: the
program as `jax.export` writes it, for CPUs, GPUs and TPUs and for batches of any size. It says
nothing of strategies: the weights go wherever the variables are made when it is loaded.
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
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.folder import NewFolder
from replicax._core.placement import to_host
from replicax._function.concrete import ConcreteFunction
from replicax._function.function import BoundFunction, StatefulFunction
from replicax._function.nests import to_json
from replicax._keras import _compat
from replicax._keras.capture import evaluate
from replicax._keras.module import Module

logger = logging.getLogger("replicax")

MANIFEST, WEIGHTS, FORMAT = "saved_model.json", "weights.npz", 1
SERVING = "serving_default"
PLATFORMS = ("cpu", "cuda", "tpu")


@dataclass
class _Writer:
    """What is to be written."""

    variables: dict[int, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    known: dict[int, tuple[ConcreteFunction, str]] = field(default_factory=dict)
    functions: dict[str, Any] = field(default_factory=dict)

    def number(self, variable: Any) -> int:
        """The number of a variable."""
        self.variables.setdefault(id(variable), variable)
        return list(self.variables).index(id(variable))

    def function(self, concrete: ConcreteFunction) -> str:
        """The key of a function, which is written once."""
        if id(concrete) in self.known:
            return self.known[id(concrete)][1]
        key = str(len(self.functions))
        self.known[id(concrete)] = (concrete, key)
        self.functions[key] = {}
        traced = concrete.traced()
        captured, name = traced.captured, f"function_{key}.bin"
        self.functions[key] = {
            "file": name,
            "name": concrete.name,
            "parameters": concrete.parameters,
            "inputs": to_json(concrete.structured_input_signature),
            "outputs": to_json(concrete.structured_outputs),
            "variables": [self.number(variable) for variable in captured.variables],
            "written": list(captured.written),
        }
        values = [_compat.read(variable) for variable in captured.variables]
        shapes = [jax.ShapeDtypeStruct(value.shape, value.dtype) for value in values]
        self.files[name] = _exported(captured.jaxpr, shapes, traced.shapes)
        return key


def save(obj: Any, path: str, signatures: Any = None, options: Any = None) -> None:
    """Save what a model or a module computes, for inference.

    **Differs from TF:** the folder is Replicax' own: `load` and `TFSMLayer` read it, TensorFlow
    does not. Of a module, functions with an `input_signature` are saved.

    Args:
        obj: A Keras model, or an `rx.Module`. A model that was not called is saved without
            functions, and a warning says so.
        path: The folder; one that is there is replaced.
        signatures: A compiled function with an input signature, or a concrete one, or a dict of
            them by name. None: of a model, its call, as "serving_default".
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
    own = _own_functions(obj)
    named = _signatures(signatures)
    if signatures is None and SERVING in own:
        named = {SERVING: own[SERVING]}
    attributes = {name: writer.function(fn) for name, fn in own.items() if name != SERVING}
    entries = {name: writer.function(fn) for name, fn in named.items()}
    held = {
        name: writer.number(value)
        for name, value in _attributes(obj)
        if isinstance(value, _compat.KerasVariable)
    }
    for variable in getattr(obj, "variables", ()):
        writer.number(variable)
    if not (writer.functions or writer.variables or isinstance(obj, _compat.Trainer)):
        raise UsageError(
            "A saved model has functions or variables. Received: a "
            f"{type(obj).__name__} without any. There is nothing to write. Save a Keras model, or "
            "an `rx.Module`, whose `@tf.function(input_signature=…)` methods are saved."
        )
    manifest = {
        "format": FORMAT,
        "functions": writer.functions,
        "signatures": entries,
        "attributes": attributes,
        "held": held,
        "variables": _described(writer.variables, obj),
    }
    weights = [to_host(_compat.read(variable)) for variable in writer.variables.values()]
    _write(Path(path), manifest, weights, writer.files)


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


def _own_functions(obj: Any) -> dict[str, ConcreteFunction]:
    """The functions of an object, by attribute; of a model, its call."""
    if isinstance(obj, _compat.Trainer):
        call = _call_of(obj)
        return {} if call is None else {SERVING: call, "serve": call}
    found = {}
    for name, value in _attributes(obj):
        concrete = _concrete(value) if isinstance(obj, Module) else None
        if concrete is not None:
            found[name] = concrete
    return found


def _call_of(model: Any) -> ConcreteFunction | None:
    try:
        specs = _compat.call_specs(model)
    except ValueError as error:
        logger.warning(
            "The model %r is saved without its call, for which the shapes of its inputs have to be "
            "known. %s Call it once, `model(example)`, or give it an `Input`.",
            model.name,
            error,
        )
        return None

    def serve(inputs: Any) -> Any:
        return model(inputs, training=False)

    def serve_several(*inputs: Any) -> Any:
        return model(*inputs, training=False)

    return ConcreteFunction(
        StatefulFunction(serve if len(specs) == 1 else serve_several), specs, {}, None
    )


def _attributes(obj: Any) -> list[tuple[str, Any]]:
    """What an object holds, and its compiled methods."""
    methods = inspect.getmembers_static(type(obj), lambda m: isinstance(m, StatefulFunction))
    bound = [(name, getattr(obj, name)) for name, _ in methods]
    return [*bound, *getattr(obj, "__dict__", {}).items()]


def _concrete(value: Any) -> ConcreteFunction | None:
    if isinstance(value, ConcreteFunction):
        return value
    compiled = isinstance(value, StatefulFunction | BoundFunction)
    if not compiled or value.input_signature is None:
        return None
    return value.get_concrete_function()


def _signatures(signatures: Any) -> dict[str, ConcreteFunction]:
    if signatures is None:
        return {}
    given = signatures if isinstance(signatures, dict) else {SERVING: signatures}
    found = {name: _concrete(value) for name, value in given.items()}
    for name, concrete in found.items():
        if concrete is None:
            raise UsageError(
                "A signature is a compiled function whose arguments are known. Received: "
                f"{given[name]!r} for {name!r}. What shapes it is called with is not known. Pass "
                "`fn.get_concrete_function(tf.TensorSpec([None, 3], tf.float32))`, or decorate it "
                "with an `input_signature`."
            )
    return {name: concrete for name, concrete in found.items() if concrete is not None}


def _exported(jaxpr: Any, values: Sequence[Any], leaves: Sequence[Any]) -> bytes:
    program: Callable[..., Any] = jax.jit(lambda state, given: evaluate(jaxpr, *state, *given))
    try:
        exported = jax.export.export(program, platforms=PLATFORMS)(values, leaves)
    except NotImplementedError:
        logger.info("The saved program is for this machine's devices: others lack an operation.")
        exported = jax.export.export(program)(values, leaves)
    return bytes(exported.serialize())


def _write(target: Path, manifest: Any, weights: Sequence[Any], files: dict[str, bytes]) -> None:
    with NewFolder(target, {MANIFEST}) as folder:
        for name, content in files.items():
            (folder / name).write_bytes(content)
        # As bytes: NumPy's file format knows no bfloat16.
        raw = {str(n): np.frombuffer(w.tobytes(), np.uint8) for n, w in enumerate(weights)}
        np.savez(folder / WEIGHTS, **raw)  # pyright: ignore[reportArgumentType]
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
