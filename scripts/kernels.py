"""Build the CPU kernels: one library per level of a CPU's instructions.

The build of a wheel and an editable install call `build`; so does `make`, after a change of the C
sources. No failure stops an install: what went wrong is written beside the libraries, for
`replicax doctor` to show.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

CPU = Path(__file__).resolve().parents[1] / "src" / "replicax" / "_cpu"
BUILT = CPU / "built"
NOTE = "not_built.txt"

# For each machine the levels of src/replicax/_cpu/kernels.py, and their flags.
LEVELS = {
    "x86_64": {"x86-64-v3": ("-march=x86-64-v3",), "x86-64-v4": ("-march=x86-64-v4",)},
    "aarch64": {"aarch64": ()},
}
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fno-math-errno", "-pthread")
# Products and sums are rounded one by one, as XLA rounds them, and alike on CPUs of every level.
# Comparisons of images may be computed where their result is not used, for vectors.
OF_SOURCE = {
    "adam": ("-ffp-contract=off",),
    "tables": ("-ffp-contract=off",),
    "convolutions": ("-fno-strict-aliasing",),  # a number may be a pair
    "images": ("-ffp-contract=off", "-fno-trapping-math"),
}
SECONDS = 120  # for one run of the compiler


class NotBuiltError(Exception):
    """No kernels can be built here; the text says why, in one line."""


def compiler() -> list[str]:
    """Return the command of the C compiler, `CC` first; empty where no kernels can be built."""
    if not _is_supported():
        return []
    own = shlex.split(os.environ.get("CC", ""))
    for command in [own] if own else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return []


def _is_supported() -> bool:
    return platform.system() == "Linux" and platform.machine() in LEVELS


def build(folder: Path = BUILT) -> str:
    """Build the libraries into a folder; what an earlier build left there is removed.

    Returns:
        Empty, or why some or all of them are missing, in one line.
    """
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        made, why = [], ""
        try:
            command, headers = _tools()
            for level, flags in LEVELS[platform.machine()].items():
                made.append(_library(command, headers, level, flags, Path(work)))
        except (NotBuiltError, OSError, subprocess.SubprocessError) as error:
            why = _in_one_line(error)
        for path in made:
            os.replace(path, folder / path.name)  # at once: a program may be loading the old one
    for old in folder.glob("*.so"):
        if old.name not in {path.name for path in made}:
            old.unlink()
    if why:
        (folder / NOTE).write_text(f"{why}\n", encoding="utf-8")
    else:
        (folder / NOTE).unlink(missing_ok=True)
    return why


def _tools() -> tuple[list[str], Path]:
    """Return the compiler's command and the folder of XLA's headers, which jaxlib brings."""
    if not _is_supported():
        raise NotBuiltError(f"there are none for {platform.system()} on {platform.machine()}")
    command = compiler()
    if not command:
        raise NotBuiltError("there was no C compiler (cc, gcc or clang) at the install")
    jaxlib = importlib.util.find_spec("jaxlib")
    if jaxlib is None or jaxlib.origin is None:
        raise NotBuiltError("there was no jaxlib at the install, which has the headers of XLA")
    return command, Path(jaxlib.origin).parent / "include"


def _library(
    command: list[str], headers: Path, level: str, flags: tuple[str, ...], work: Path
) -> Path:
    """Compile each source with its own flags, and link them once."""
    objects = []
    for source in sorted((CPU / "src").glob("*.c")):
        made = work / f"{source.stem}-{level}.o"
        own = (*FLAGS, *flags, *OF_SOURCE.get(source.stem, ()), f"-I{headers}")
        _run([*command, *own, "-c", str(source), "-o", str(made)])
        objects.append(str(made))
    library = work / f"{level}.so"
    _run([*command, "-shared", "-pthread", *objects, "-lm", "-o", str(library)])
    return library


def _run(command: list[str]) -> None:
    subprocess.run(
        command,
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )


def _in_one_line(error: Exception) -> str:
    """Return what went wrong, of a compiler the first line that speaks of an error."""
    said = (getattr(error, "output", None) or "").splitlines()
    if not isinstance(error, subprocess.SubprocessError):
        return str(error)
    first = next((line for line in said if "error" in line), " ".join(said[:1]))
    return f"the C compiler failed at the install: {first or error}"


if __name__ == "__main__":
    if why := build():
        print(f"CPU kernels were not built: {why}")
