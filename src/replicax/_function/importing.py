"""Load saved models: functions on variables of the current strategy, and as a layer."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import jax
import jax.export
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.errors import CheckpointError, SignatureMismatch, UsageError, did_you_mean
from replicax._function.concrete import Spec
from replicax._function.exporting import (
    FORMAT,
    MANIFEST,
    WEIGHTS,
    filled,
    from_json,
    specs_of,
)
from replicax._function.function import function
from replicax._function.input_signature import fitted
from replicax._keras import _compat
from replicax._keras.variable import Variable


def contains_saved_model(export_dir: str) -> bool:
    """Whether `save` has written the folder."""
    return (Path(export_dir) / MANIFEST).is_file()


def load(export_dir: str, tags: Any = None, options: Any = None) -> LoadedModel:
    """Load a saved model. In `strategy.scope()` its variables belong to the strategy.

    Args:
        export_dir: The folder that `save` wrote.
        tags: Ignored.
        options: Ignored.

    Returns:
        An object with `signatures`, `variables`, and the saved object's functions and variables as
        attributes.

    Raises:
        CheckpointError: If the folder is missing, or is not a saved model of Replicax.
    """
    folder = Path(export_dir)
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        with np.load(folder / WEIGHTS, allow_pickle=False) as arrays:
            raw = [arrays[str(number)] for number in range(len(manifest["variables"]))]
        programs = {
            key: jax.export.deserialize(bytearray((folder / about["file"]).read_bytes()))
            for key, about in manifest["functions"].items()
        }
    except (OSError, KeyError, ValueError) as error:
        raise CheckpointError(
            f"Cannot load {str(export_dir)!r}: {error}. SavedModel file does not exist, or "
            "TensorFlow wrote it. Save the model with `replicax.tf.saved_model.save`."
        ) from error
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"Cannot load {str(export_dir)!r}: its format is {manifest['format']}, and this "
            f"version of Replicax reads {FORMAT}. Load it with the version that saved it."
        )
    variables = [
        _variable(about, data) for about, data in zip(manifest["variables"], raw, strict=True)
    ]
    compiled = {
        key: LoadedProgram(about, programs[key], [variables[n] for n in about["variables"]])
        for key, about in manifest["functions"].items()
    }
    return _assembled(manifest, variables, compiled)


def _assembled(
    manifest: dict[str, Any], variables: Sequence[Any], compiled: dict[str, LoadedProgram]
) -> LoadedModel:
    """Rebuild the saved objects and their attributes; the first object is the root."""
    objects = [LoadedModel([variables[n] for n in one["variables"]]) for one in manifest["objects"]]

    def held(about: dict[str, Any] | None) -> Any:
        ((kind, content),) = (about or {"nothing": None}).items()
        if kind == "function":
            return LoadedFunction([compiled[key] for key in content])
        if kind == "list":
            return [held(part) for part in content]
        if kind == "dict":
            return {key: held(part) for key, part in content}
        return {"variable": variables, "object": objects}[kind][content] if about else None

    for loaded, about in zip(objects, manifest["objects"], strict=True):
        loaded.hold({name: held(part) for name, part in about["attributes"].items()})
    objects[0].variables = tuple(variables)
    objects[0].signatures = {
        name: SignatureFunction(LoadedFunction([compiled[key] for key in keys]))
        for name, keys in manifest["signatures"].items()
    }
    return objects[0]


def _variable(about: dict[str, Any], data: np.ndarray) -> Variable:
    value = np.frombuffer(data.tobytes(), jnp.dtype(about["dtype"])).reshape(about["shape"])
    return Variable(value, trainable=about["trainable"], name=about["path"], dtype=about["dtype"])


@final
class LoadedModel:
    """A loaded model, module or layer."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = tuple(variables)
        self.signatures: dict[str, SignatureFunction] = {}
        self._call: LoadedFunction | None = None

    def hold(self, attributes: dict[str, Any]) -> None:
        self._call = attributes.pop("__call__", None)
        vars(self).update(attributes)

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The trainable variables."""
        return tuple(variable for variable in self.variables if variable.trainable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the saved model, or the saved method `__call__`."""
        call = self._call or getattr(self, "serve", None)
        if call is None:
            raise TypeError(
                "This loaded module is not callable: its `__call__` was saved without an input "
                "signature, before any call. Call one of its signatures, "
                f"{sorted(self.signatures)}, or call the module before you save it."
            )
        return call(*args, **kwargs)


@final
class LoadedFunction:
    """A saved function: one program per saved signature."""

    def __init__(self, programs: Sequence[LoadedProgram]) -> None:
        self._programs = programs
        self.name = programs[0].name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as before it was saved; constants may be left out.

        Raises:
            SignatureMismatch: If the arguments fit none of the saved programs.
        """
        return self._call_first(lambda program, exact: program.bound(args, kwargs, exact))

    def on(self, arrays: Sequence[Any]) -> Any:
        """Call the function with arrays in the order of its specs."""
        return self._call_first(lambda program, exact: program.fitted(arrays, exact))

    def _call_first(self, read: Callable[[LoadedProgram, bool], list[Any]]) -> Any:
        """Call the first program that fits, preferably one that needs no conversion of dtypes."""
        errors: list[TypeError] = []
        for exact in (True, False):
            for program in self._programs:
                try:
                    arrays = read(program, exact)
                except TypeError as error:
                    errors.append(error)
                else:
                    return program.compute(arrays)
        if len(self._programs) == 1:
            raise errors[-1]
        kinds = [program.structured_input_signature for program in self._programs]
        raise SignatureMismatch(
            f"The arguments of {self.name!r} fit none of the saved signatures: {kinds}. Pass "
            "arrays of these types, or save it with an `input_signature`."
        ) from errors[-1]

    @property
    def structured_input_signature(self) -> Any:
        """The specs of the positional and of the keyword arguments."""
        return _common([program.structured_input_signature for program in self._programs])

    @property
    def structured_outputs(self) -> Any:
        """The specs of the results."""
        return _common([program.structured_outputs for program in self._programs])


@final
class LoadedProgram:
    """A saved program with its variables."""

    def __init__(self, about: Any, program: Any, variables: Sequence[Any]) -> None:
        self.name = about["name"]
        self._variables = variables
        self._written = about["written"]
        self._program = program
        self._parameters = [inspect.Parameter(n, k) for n, k in about["parameters"]]
        self.structured_input_signature = from_json(about["inputs"])
        self.structured_outputs = from_json(about["outputs"])
        self.compute = function(self._compute)

    def bound(self, args: Sequence[Any], kwargs: dict[str, Any], exact: bool) -> list[Any]:
        """The arrays of a call; with `exact`, dtypes must be equal."""
        signature = inspect.Signature(self._parameters)
        own_args, own_kwargs = self.structured_input_signature
        own = signature.bind(*own_args, **own_kwargs).arguments
        given = {**own, **signature.bind_partial(*args, **kwargs).arguments}
        if unknown := given.keys() - own.keys():
            raise SignatureMismatch(
                f"{self.name!r} has no argument {', '.join(map(repr, sorted(unknown)))}: it was "
                "saved for calls without. Leave it out, or save the function for a call with it."
            )
        arrays: list[Any] = []
        for name, spec in own.items():
            fitted(spec, given[name], name)  # constants and structure, too
            leaves, tree = jax.tree.flatten(spec)
            parts = zip(leaves, tree.flatten_up_to(given[name]), strict=True)
            arrays += [part for leaf, part in parts if isinstance(leaf, Spec)]
        return self.fitted(arrays, exact)

    def fitted(self, arrays: Sequence[Any], exact: bool) -> list[Any]:
        """Check arrays, in the order of the specs, and convert their dtypes unless `exact`."""
        specs = specs_of(self.structured_input_signature)
        pairs = [*zip(specs, arrays, strict=True)]
        if exact and any(getattr(array, "dtype", None) != spec.dtype for spec, array in pairs):
            raise SignatureMismatch(
                f"The arrays of {self.name!r} have other types than its signature. Cast them."
            )
        return [fitted(spec, array, spec.name or "") for spec, array in pairs]

    def _compute(self, arrays: list[Any]) -> Any:
        values = [_compat.read(variable) for variable in self._variables]
        specs = specs_of(self.structured_input_signature)
        sizes = self._sizes(arrays)
        empty = {name for name, size in sizes.items() if not size}
        if empty:  # `jax.export` assumes symbolic sizes of at least one
            arrays = [_with_a_row(array, spec) for array, spec in zip(arrays, specs, strict=True)]
        results = self._program.call(values, [jnp.asarray(array) for array in arrays])
        results = [
            _without_it(result, aval.shape, empty)
            for result, aval in zip(results, self._program.out_avals, strict=True)
        ]
        outputs = specs_of(self.structured_outputs)
        news = results[len(outputs) :]
        for number, new in zip(self._written, news, strict=True):
            self._variables[number].assign(new)
        rest = iter(results)
        return filled(self.structured_outputs, lambda spec: next(rest))

    def _sizes(self, arrays: Sequence[Any]) -> dict[str, int]:
        """The sizes of the program's symbolic axes in this call, by the symbols' names."""
        found: dict[str, int] = {}
        avals = self._program.in_avals[len(self._variables) :]
        for aval, array in zip(avals, arrays, strict=True):
            for symbol, size in zip(aval.shape, array.shape, strict=True):
                is_open = jax.export.is_symbolic_dim(symbol)
                if is_open and (known := found.setdefault(str(symbol), size)) != size:
                    raise SignatureMismatch(
                        f"Arguments of {self.name!r} have {size} and {known} rows. Pass the same "
                        "number of rows in each."
                    )
        return found


@final
class SignatureFunction:
    """A signature: it takes arrays by name, or in order, and returns a dict of arrays."""

    def __init__(self, loaded: LoadedFunction) -> None:
        self._loaded = loaded
        inputs = specs_of(loaded.structured_input_signature)
        self._specs = {spec.name or f"input_{n}": spec for n, spec in enumerate(inputs)}
        outputs = loaded.structured_outputs
        flat = isinstance(outputs, dict) and all(isinstance(v, Spec) for v in outputs.values())
        names = outputs if flat else [f"output_{n}" for n, _ in enumerate(specs_of(outputs))]
        self._outputs = list(names)

    @property
    def structured_input_signature(self) -> tuple[tuple[()], dict[str, Spec]]:
        """An empty tuple, since a signature has no positional arguments, and specs by name."""
        return (), dict(self._specs)

    @property
    def structured_outputs(self) -> dict[str, Spec]:
        """The specs of the results, by name."""
        found = specs_of(self._loaded.structured_outputs)
        return dict(zip(self._outputs, found, strict=True))

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Compute the results.

        Raises:
            UsageError: If an array is missing, or its name is unknown.
            SignatureMismatch: If an array does not match its spec.
        """
        names = list(self._specs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if set(given) != set(names) or len(args) > len(names):
            raise UsageError(
                f"The signature needs the arrays {names}, got {len(args)} by position and "
                f"{sorted(kwargs)} by name. Call "
                f"`signature({', '.join(f'{name}=…' for name in names)})`."
            )
        result = self._loaded.on([given[name] for name in names])
        return dict(zip(self._outputs, jax.tree.leaves(result), strict=True))


def _common(nests: Sequence[Any]) -> Any:
    """Merge the specs of several programs: shapes that differ become None."""
    each = [specs_of(nest) for nest in nests]
    if len({len(specs) for specs in each}) > 1:
        return nests[0]
    shapes = [{spec.shape for spec in specs} for specs in zip(*each, strict=True)]
    rest = iter(shapes)
    return filled(
        nests[0], lambda spec: replace(spec, shape=spec.shape if len(next(rest)) == 1 else None)
    )


def _without_it(result: Any, shape: Sequence[Any], empty: set[str]) -> Any:
    """Drop the row that `_with_a_row` added to an empty argument."""
    for axis, size in enumerate(shape):
        if str(size) in empty:
            result = jnp.take(result, jnp.arange(0), axis)
        elif empty.intersection(re.findall(r"\w+", str(size))):
            raise UsageError(
                f"Cannot call this saved function without rows: its result has {size} rows. Pass "
                "at least one row, or call the original function."
            )
    return result


def _with_a_row(array: Any, spec: Spec) -> Any:
    if array.size:
        return array
    pairs = zip(array.shape, spec.shape or (), strict=True)
    return jnp.zeros([max(1, n) if size is None else n for n, size in pairs], array.dtype)


@final
class TFSMLayer(keras.layers.Layer):
    """A layer that calls a function of a saved model, for inference.

    **Differs from Keras:** it reads only folders that Replicax' `tf.saved_model.save` wrote. Its
    weights are not trained.

    Args:
        filepath: The folder.
        call_endpoint: "serve", or the name of a signature; signatures return a dict.
        call_training_endpoint: The endpoint for training; None for `call_endpoint`.
        trainable: Ignored.
        name: The layer's name.
        dtype: The layer's dtype.
    """

    def __init__(
        self,
        filepath: str,
        call_endpoint: str = "serve",
        call_training_endpoint: str | None = None,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(trainable=False, name=name, dtype=dtype)
        self.filepath = str(filepath)
        self.call_endpoint = call_endpoint
        self.call_training_endpoint = call_training_endpoint
        self._loaded = load(filepath)
        for variable in self._loaded.variables:
            variable.trainable = False
            self._track_variable(variable)
        for name in (call_endpoint, call_training_endpoint or call_endpoint):
            self._endpoint(name)  # raises if there is none
        self.built = True

    def _endpoint(self, name: str) -> Any:
        found = self._loaded.signatures.get(name) or getattr(self._loaded, name, None)
        if not callable(found):
            raise UsageError(
                f"No endpoint {name!r} in this "
                f"folder.{did_you_mean(name, self._loaded.signatures)} Pass `call_endpoint=` one "
                f"of {sorted(self._loaded.signatures)}."
            )
        return found

    def call(self, inputs: Any, training: bool = False) -> Any:
        """Call the endpoint."""
        other = self.call_training_endpoint if training else None
        return self._endpoint(other or self.call_endpoint)(inputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        return {
            **super().get_config(),
            "filepath": self.filepath,
            "call_endpoint": self.call_endpoint,
            "call_training_endpoint": self.call_training_endpoint,
        }
