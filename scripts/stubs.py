"""Write stub files for the namespaces of `replicax.tf`, from their table.

The namespaces have no files, so editors and type checkers know them by these. The build of a wheel
and an editable install write them; so does `make stubs`, after a change of the table.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TF = ROOT / "src" / "replicax" / "tf"


def lines(name: str, sources: tuple, children: list[str]) -> Iterator[str]:
    """Yield the lines of a stub; of two imports of a name the later one counts."""
    yield f'"""`{name}`: {sources[0]}."""'
    for source in reversed(sources[1:]):
        if isinstance(source, str):
            yield f"from {absolute(source)} import *"
            continue
        for shown, home in source.items():
            module, colon, other = home.partition(":")
            package, _, own = absolute(module).rpartition(".")
            if colon and not other:
                yield f"from {package} import {own} as {shown}"
            else:
                yield f"from {absolute(module)} import {other or shown} as {shown}"
    for child in children:
        yield f"from replicax.{name} import {child} as {child}"


def absolute(module: str) -> str:
    return f"replicax.tf{module}" if module.startswith(".") else module


def write() -> None:
    """Write the stubs anew; those of namespaces that are gone are removed."""
    table = runpy.run_path(str(TF / "_names.py"))["NAMESPACES"]
    for old in TF.rglob("*.pyi"):
        old.unlink()
    for name, sources in table.items():
        inner = [n.rpartition(".")[2] for n in table if n.rpartition(".")[0] == name]
        place = TF.joinpath(*name.split(".")[1:])
        path = place / "__init__.pyi" if inner or place.is_dir() else place.with_suffix(".pyi")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines(name, sources, inner)) + "\n")


if __name__ == "__main__":
    write()
