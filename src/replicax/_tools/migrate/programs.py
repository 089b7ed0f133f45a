"""Scripts and notebooks as pieces of Python, and back, preserving everything else."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from replicax._core.errors import UsageError

_SKIPPED = {"__pycache__", "site-packages", "node_modules", "build", "dist", "venv", "env"}
# Cell magics whose body is Python: some run it here, some write it to a file.
_MAGICS_RUN = {"capture", "prun", "time", "timeit", "skip"}
_MAGICS_WRITE = {"file", "writefile"}
_MARK = "replicax-hidden-line"
_LINE = re.compile(
    # Indentation; perhaps `name =`; then a magic, or a question mark before or behind a name.
    r"(?P<indent>[ \t]*)(?P<target>[\w.\[\]'\", ]+=[ \t]*)?"
    r"(?P<magic>(?:!(?!=)|%+\w|\?).*|[\w.]+\?{1,2}[ \t]*)"
)
_HIDDEN = re.compile(rf"[ \t]*(?:.*= )?(?:pass|None)  # {_MARK} (\d+)")
_BACKEND = re.compile(r"(%(?:set_)?env\s+KERAS_BACKEND[= ]\s*)tensorflow\b")


@dataclass(frozen=True)
class Piece:
    """Python of a script, or of a notebook's cell, whose magics are masked."""

    original: str
    text: str  # its Python
    cell: int | None = None  # from 1
    lines: tuple[str, ...] = ()  # those that are masked
    head: str = ""  # the cell magic, and the lines above it
    alone: bool = False  # a program of its own, as the body of `%%writefile` is

    @property
    def offset(self) -> int:
        """The number of lines of the cell above the Python."""
        return self.head.count("\n")

    def source(self, text: str) -> str:
        """The whole source again, from its Python, with Keras' backend changed in its magics."""
        result, skip = [], 0
        for line in text.splitlines(keepends=True):
            match = _HIDDEN.match(line) if self.lines else None
            if match:
                content = self.lines[int(match[1])]
                skip = content.count("\n")
                end = line[len(line.rstrip("\r\n")) :]
                result.append(_BACKEND.sub(r"\g<1>jax", content) + ("" if skip else end))
            elif skip:
                skip -= 1
                result.append("" if skip else line)
            else:
                result.append(line)
        return self.head + "".join(result)


@dataclass(frozen=True)
class Program:
    """A script or notebook; `rebuild` makes the file's bytes of the sources of the pieces."""

    path: Path
    pieces: tuple[Piece, ...]
    rebuild: Callable[[list[str]], bytes]


def find(paths: list[str]) -> Iterator[tuple[Path, Path | None]]:
    """The scripts and notebooks that paths name or hold, and in which folder each was found."""
    for name in paths:
        path = Path(name)
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if _is_program(file, path)]
            if not files:
                raise UsageError(f"Cannot migrate {name!r}: the folder has no .py or .ipynb file.")
            yield from ((file, path) for file in files)
        elif path.is_file() and path.suffix in (".py", ".ipynb"):
            yield path, None
        else:
            raise UsageError(
                f"Cannot migrate {name!r}: "
                + ("it is no .py or .ipynb file." if path.exists() else "no such file.")
            )


def is_skipped(folder: str) -> bool:
    """Whether a folder of this name holds nothing of the user's."""
    return folder.startswith(".") or folder in _SKIPPED


def _is_program(file: Path, folder: Path) -> bool:
    above = file.relative_to(folder).parts[:-1]
    skipped = any(map(is_skipped, above))
    return file.suffix in (".py", ".ipynb") and file.is_file() and not skipped


def load(path: Path) -> Program:
    with refused(path):
        data = path.read_bytes()
        return _notebook(path, data) if path.suffix == ".ipynb" else _script(path, data)


@contextlib.contextmanager
def refused(path: Path) -> Generator[None, None, None]:
    """Name the program in the error if it cannot be read."""
    try:
        yield
    except UsageError:
        raise
    except (RecursionError, MemoryError) as error:  # Python's parser raises either for deep nesting
        raise UsageError(
            f"Cannot read {str(path)!r}: it is nested too deeply for Python's parser "
            f"({type(error).__name__}). Split its longest expression into several statements, or "
            "move its data into a file."
        ) from error
    except (OSError, SyntaxError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"Cannot read {str(path)!r}: {type(error).__name__}: {error}. Save it again, "
            + ("by Jupyter." if path.suffix == ".ipynb" else "as UTF-8.")
        ) from error


def _script(path: Path, data: bytes) -> Program:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    text = data.decode(encoding)
    return Program(path, (Piece(text, text),), lambda sources: sources[0].encode(encoding))


def _notebook(path: Path, data: bytes) -> Program:
    text = data.decode("utf-8-sig")
    notebook = json.loads(text)
    pieces, kept = [], []
    for number, cell in enumerate(notebook["cells"], 1):
        if cell["cell_type"] == "code" and (piece := piece_of("".join(cell["source"]), number)):
            pieces.append(piece)
            kept.append(cell)

    def rebuild(sources: list[str]) -> bytes:
        for cell, source in zip(kept, sources, strict=True):
            was_list = isinstance(cell["source"], list)
            cell["source"] = source.splitlines(keepends=True) if was_list else source
        return _dumped(notebook, text).encode("utf-8-sig" if data[:1] == b"\xef" else "utf-8")

    return Program(path, tuple(pieces), rebuild)


def _dumped(notebook: Any, before: str) -> str:
    """JSON in the layout of the file as it was: indent, escapes, the last line's end."""
    indent = re.match(r"\{\r?\n( +|\t)", before)
    separators = None if indent or ": " in before else (",", ":")
    text = json.dumps(
        notebook,
        ensure_ascii=before.isascii(),
        separators=separators,
        indent=indent[1] if indent else None,
    )
    end = before[len(before.rstrip()) :]
    text += end
    return text.replace("\n", "\r\n") if "\r\n" in before else text


def write(path: Path, data: bytes, *, backup: bool) -> None:
    """Replace a program atomically; `backup` keeps the old one as `FILE.orig`."""
    if backup:
        shutil.copy2(path, f"{path}.orig")
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        shutil.copymode(path, name)
        os.replace(name, path.resolve())
    except BaseException:
        os.unlink(name)
        raise


def piece_of(source: str, cell: int | None = None) -> Piece | None:
    """A cell with its magics masked; None if it is not Python."""
    magic = re.match(r"\s*%%(\w+)([^\n]*)(\n|\Z)", source)
    head, body = (source[: magic.end()], source[magic.end() :]) if magic else ("", source)
    if magic and magic[1] in _MAGICS_WRITE and magic[2].strip().split(" ")[-1].endswith(".py"):
        return Piece(source, body, cell, (), head, alone=True)
    if magic and magic[1] not in _MAGICS_RUN:
        return None
    text, lines = _without_lines(body)
    return Piece(source, text, cell, lines, head)


def _without_lines(source: str) -> tuple[str, tuple[str, ...]]:
    """Replace every line that only IPython understands by a statement."""
    if _is_python(source):  # a line within may begin with `%` and continue the one above
        return source, ()
    lines, kept, result = source.splitlines(keepends=True), [], []
    while lines:
        line = lines.pop(0)
        content = line.rstrip("\r\n")
        match = _LINE.fullmatch(content)
        if match is None:
            result.append(line)
            continue
        while content.endswith("\\") and lines:  # the shell command continues
            content += line[len(line.rstrip("\r\n")) :] + lines[0].rstrip("\r\n")
            line = lines.pop(0)
        # The number of lines stays, and with it the numbers of the others.
        extra = [""] * content.count("\n")
        statement = f"{match['target']}None" if match["target"] else "pass"
        statement = f"{match['indent']}{statement}  # {_MARK} {len(kept)}"
        kept.append(content)
        result.append("\n".join([statement, *extra]) + line[len(line.rstrip("\r\n")) :])
    return "".join(result), tuple(kept)


def _is_python(source: str) -> bool:
    try:
        ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: its depth
        return False
    return True
