"""What is recorded beside this file: public names with their signatures, and operations of steps.

python tests/guards/recorded.py    record both anew, after a change that is meant
"""

from __future__ import annotations

import enum
import importlib
import importlib.metadata
import inspect
import itertools
import json
import pkgutil
import re
from collections.abc import Iterator

import measured

PUBLIC = measured.HERE / "public_api.txt"
STEPS = measured.HERE / "steps.json"
RECORDED_STEPS = list(itertools.product(measured.KINDS, "12"))
OF_JAX = "replicax.tf.experimental.numpy."  # names that differ between its versions

# What a default prints that is another one in each process.
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def public_modules() -> Iterator[str]:
    """Yield the modules of `replicax` that have no private part in their names."""
    import replicax

    yield "replicax"
    for found in pkgutil.walk_packages(replicax.__path__, "replicax.", onerror=lambda name: None):
        if not any(part.startswith("_") for part in found.name.split(".")[1:]):
            yield found.name
    from replicax.tf._names import NAMESPACES  # modules without files

    yield from (f"replicax.{name}" for name in NAMESPACES)


def signature_of(value: object) -> str:
    if isinstance(value, enum.EnumType):
        return ""  # it is that of its Python
    try:
        return ADDRESS.sub("", str(inspect.signature(value)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "replicax"


def described(name: str, value: object) -> Iterator[str]:
    """Yield a line for the value, and one for each public member of a class of ours."""
    if not is_ours(value) or not callable(value):
        yield name
        return
    yield name + signature_of(value)
    if isinstance(value, type):
        for member, held in sorted(vars(value).items()):
            if not member.startswith("_"):
                plain = held.__func__ if isinstance(held, (classmethod, staticmethod)) else held
                yield f"{name}.{member}{signature_of(plain) if callable(plain) else ''}"


def public_api() -> list[str]:
    """Return one line for each public name, in order: its path, and its signature if it is ours.

    Names that `replicax.tf.keras` hands on from Keras are left out: they are those of its version.
    """
    lines = set()
    for module in map(importlib.import_module, public_modules()):
        for name in dir(module):
            value = getattr(module, name)
            of_keras = module.__name__.startswith("replicax.tf.keras") and not is_ours(value)
            of_python = getattr(value, "__module__", "") in ("typing", "__future__")
            if not (name.startswith("_") or inspect.ismodule(value) or of_keras or of_python):
                lines.update(described(f"{module.__name__}.{name}", value))
    return sorted(lines)


def of_any_jax(lines: list[str]) -> list[str]:
    """All lines with JAX 0.10, of which the record is; else those that JAX does not change."""
    if importlib.metadata.version("jax").startswith("0.10."):
        return lines
    return [line for line in lines if not line.startswith(OF_JAX)]


if __name__ == "__main__":
    PUBLIC.write_text("".join(f"{line}\n" for line in public_api()))
    steps = {
        f"{kind} on {replicas}": measured.operations_of_steps(int(replicas))[kind]
        for kind, replicas in RECORDED_STEPS
    }
    STEPS.write_text(
        "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in steps.items()) + "\n}\n"
    )
