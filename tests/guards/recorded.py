"""What is recorded beside this file: public names with their signatures, and operations of steps.

python tests/guards/recorded.py    record both anew, after a change that is meant
"""

from __future__ import annotations

import enum
import importlib
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
# Where `replicax.tf` hands on names of Keras and JAX.
HANDED_ON = tuple(
    f"replicax.tf.{name}."
    for name in ("keras", "experimental.numpy", "initializers", "losses", "metrics", "optimizers")
)

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


def members(name: str, kind: type) -> Iterator[str]:
    """Yield a line for each public member of a class."""
    for member, held in sorted(vars(kind).items()):
        if not member.startswith("_"):
            plain = held.__func__ if isinstance(held, (classmethod, staticmethod)) else held
            yield f"{name}.{member}{signature_of(plain) if callable(plain) else ''}"


def listed_names() -> set[str]:
    """Return the names of `replicax`, and those that the table of `replicax.tf` has one by one."""
    import replicax
    from replicax.tf._names import NAMESPACES

    spaces = {"replicax": [dir(replicax)]}
    for name, (_, *sources) in NAMESPACES.items():
        spaces[f"replicax.{name}"] = [each for each in sources if not isinstance(each, str)]
    return {f"{space}.{n}" for space, sources in spaces.items() for each in sources for n in each}


def public_values() -> dict[str, object]:
    """Return what each public name is bound to, but for those of other libraries.

    Names that `replicax.tf` hands on from modules of Keras and JAX are left out: their versions
    decide them.
    """
    listed, found = listed_names(), {}
    for module in map(importlib.import_module, public_modules()):
        for name in dir(module):
            path, value = f"{module.__name__}.{name}", getattr(module, name)
            handed_on = path.startswith(HANDED_ON) and not is_ours(value)
            of_python = getattr(value, "__module__", "") in ("typing", "__future__")
            of_others = inspect.ismodule(value) or handed_on or of_python
            # One rule, not a list, gives `tf.compat.v1` the names of `tf` that mean the same there.
            modern = path.replace("tf.compat.v1.", "tf.")
            if modern != path and modern in found and found[modern] is value:
                continue
            if not name.startswith("_") and (path in listed or not of_others):
                found[path] = value
    return found


def public_api() -> list[str]:
    """Return a line for each public name, in order: its path, and its signature if it is ours.

    What has several names is described once, at the shortest of them, if possible outside of `tf`;
    the others say what they stand for.
    """

    def order(pair: tuple[str, object]) -> tuple[bool, int, str]:
        name, _ = pair
        return name.startswith("replicax.tf."), len(name), name

    lines, described = set(), {}
    for name, value in sorted(public_values().items(), key=order):
        if not is_ours(value) or not callable(value):
            lines.add(name)
        elif id(value) in described:
            lines.add(f"{name} = {described[id(value)]}")
        else:
            described[id(value)] = name
            lines.add(name + signature_of(value))
            lines.update(members(name, value) if isinstance(value, type) else ())
    return sorted(lines)


if __name__ == "__main__":
    PUBLIC.write_text("".join(f"{line}\n" for line in public_api()))
    steps = {
        f"{kind} on {replicas}": measured.operations_of_steps(int(replicas))[kind]
        for kind, replicas in RECORDED_STEPS
    }
    STEPS.write_text(
        "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in steps.items()) + "\n}\n"
    )
