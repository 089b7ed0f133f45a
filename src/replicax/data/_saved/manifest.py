"""The description of a saved data set: its structure, its arrays and its files."""

from __future__ import annotations

import collections
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax.data._spec import ArraySpec

NAME = "replicax.json"

_VERSION = 1
_TEXT = {"str": str, "bytes": bytes}


@dataclass(frozen=True)
class Leaf:
    """One array of the elements; an axis whose size varies is None."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def spec(self) -> ArraySpec:
        """The spec of this array in an element."""
        return ArraySpec(self.shape, _TEXT.get(self.dtype) or np.dtype(self.dtype))

    @property
    def varies(self) -> bool:
        """Whether the rows have different shapes."""
        return None in self.shape

    @property
    def is_text(self) -> bool:
        """Whether its values are `str` or `bytes`."""
        return self.dtype in _TEXT

    @property
    def files(self) -> dict[str, tuple[Any, tuple[int | None, ...]]]:
        """The type and the item shape of each of its files."""
        flat = self.is_text or self.varies
        dtype = np.uint8 if self.is_text else self.dtype
        files: dict[str, Any] = {"values": (np.dtype(dtype), () if flat else self.shape)}
        if self.is_text:
            files["offsets"] = (np.dtype(np.int64), ())
        if self.varies:
            files["starts"] = (np.dtype(np.int64), ())
            files["shapes"] = (np.dtype(np.int64), (len(self.shape),))
        return files


@dataclass(frozen=True)
class Manifest:
    """The contents of a saved data set; `files` has sizes in bytes.

    The structure is the nest of an element, with the number of a leaf in each place.
    """

    rows: int
    compression: str | None
    structure: Any
    leaves: tuple[Leaf, ...]
    files: Mapping[str, int]

    def write(self, folder: str) -> None:
        """Put the description into the folder, which makes it a saved data set."""
        fields = {**vars(self), "structure": _as_json(self.structure), "version": _VERSION}
        fields["leaves"] = [dataclasses.asdict(leaf) for leaf in self.leaves]
        with open(os.path.join(folder, NAME), "w") as file:
            json.dump(fields, file, indent=1)


def is_saved(folder: str) -> bool:
    """Whether a complete data set is there."""
    return os.path.isfile(os.path.join(folder, NAME))


def read_manifest(folder: str) -> Manifest:
    """The description of the data set that is saved there, whose files have been checked."""
    if not is_saved(folder):
        raise UsageError(
            f"{folder!r} is no saved data set: it has no {NAME}. Check the path; an interrupted "
            "`save` leaves nothing."
        )
    try:
        with open(os.path.join(folder, NAME)) as file:
            fields = json.load(file)
        version = fields.pop("version")
        if version == _VERSION:
            leaves = [Leaf(leaf["dtype"], tuple(leaf["shape"])) for leaf in fields.pop("leaves")]
            structure = _from_json(fields.pop("structure"))
            manifest = Manifest(leaves=tuple(leaves), structure=structure, **fields)
            _check_files(folder, manifest.files)
            return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CorruptRecord):
            raise
        raise CorruptRecord(
            f"{NAME} in {folder!r} cannot be understood: {error!r}. Save the data set again."
        ) from error
    raise UsageError(
        f"{folder!r} was saved as version {version}, but this release reads version {_VERSION}. "
        "Save the data set again."
    )


def _check_files(folder: str, files: Mapping[str, int]) -> None:
    for name, size in files.items():
        path = os.path.join(folder, name)
        found = os.path.getsize(path) if os.path.exists(path) else None
        if found != size:
            raise CorruptRecord(
                f"{path!r} {'is missing' if found is None else f'has {found} bytes'}, where {size} "
                "bytes were written. Copy or save the data set again."
            )


def _as_json(nest: Any) -> Any:
    """A nest of numbers in JSON, which tells tuples from lists and keys that are not text."""
    if isinstance(nest, int):
        return nest
    if nest is None:
        return {"kind": "none"}
    if type(nest) is dict and all(type(key) in (str, int) for key in nest):
        return {"kind": "dict", "items": [[key, _as_json(part)] for key, part in nest.items()]}
    if isinstance(nest, tuple):
        parts = [_as_json(part) for part in nest]
        if type(nest) is tuple:
            return {"kind": "tuple", "parts": parts}
        kind: Any = type(nest)
        name = {"module": kind.__module__, "name": kind.__qualname__}
        if hasattr(kind, "_fields"):
            return {"kind": "namedtuple", **name, "fields": kind._fields, "parts": parts}
    raise UsageError(
        f"Cannot save an element with a {type(nest).__name__}: {nest!r}, with a number for each "
        "array. Bring the elements to arrays, or tuples, named tuples and dicts of them, with a "
        "`map` before."
    )


def _from_json(nest: Any) -> Any:
    if nest is None or isinstance(nest, int):
        return nest
    match nest["kind"]:
        case "none":
            return None
        case "dict":
            return {key: _from_json(part) for key, part in nest["items"]}
        case "tuple":
            return tuple(_from_json(part) for part in nest["parts"])
    kind = _named_tuple(nest["module"], nest["name"], nest["fields"])
    return kind(*[_from_json(part) for part in nest["parts"]])


def _named_tuple(module: str, name: str, fields: list[str]) -> Any:
    """The program's class of this name, or else a similar one."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and getattr(found, "_fields", None) == tuple(fields):
        return found
    return collections.namedtuple(name.rpartition(".")[2], fields)
