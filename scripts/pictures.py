"""The pictures of the documentation, made anew by `make pictures` into docs/images.

A page is photographed by a browser without a window (Chromium or Chrome, on the PATH); what a
command prints is drawn as a terminal by rich.

    python scripts/pictures.py              all of them
    python scripts/pictures.py compare      those whose names begin so
"""

from __future__ import annotations

import io
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "images"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

COMPARE = "compare --workers 2 --replicas 4 --output {folder}"
TRAIN = "examples/fit_mirrored.py"


@dataclass(frozen=True)
class Page:
    """A photograph of a page that a command writes; `part` is the section that is on top."""

    command: str
    width: int
    height: int
    part: str = ""
    file: str = "report.html"


@dataclass(frozen=True)
class Terminal:
    """What a command prints."""

    command: str


PICTURES: dict[str, Page | Terminal] = {
    "compare.png": Page(COMPARE, 1200, 760),
    "doctor.svg": Terminal("doctor"),
    "verify.svg": Terminal(f"verify {TRAIN} --replicas 4"),
}


def main(beginnings: list[str]) -> int:
    """Make the pictures whose names begin so, or all."""
    FOLDER.mkdir(exist_ok=True)
    chosen = {
        n: p for n, p in PICTURES.items() if not beginnings or n.startswith(tuple(beginnings))
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, picture) in enumerate(chosen.items(), start=1):
            print(f"[{number}/{len(chosen)}] {name}: {picture.command}", flush=True)
            if isinstance(picture, Page):
                photograph(picture, written(picture.command, folder), FOLDER / name)
            else:
                draw_terminal(picture.command, FOLDER / name)
    print(f"made {len(chosen)} pictures in {FOLDER.relative_to(ROOT)}")
    return 0


@cache
def written(command: str, folder: str) -> Path:
    """The folder that a command has written to; it runs once, however many pictures it is for."""
    place = Path(tempfile.mkdtemp(dir=folder))
    run(command.format(folder=place))
    return place


def run(command: str) -> str:
    """Run a command of replicax, in a folder that goes with what it writes; return its output."""
    words = [sys.executable, "-m", "replicax.launch", *shlex.split(command)]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        ran = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return ran.stdout


def photograph(page: Page, folder: Path, picture: Path) -> None:
    """Let a browser show a page, and take a picture of its window."""
    with tempfile.TemporaryDirectory() as profile:
        words = [
            browser(),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=2000",
            f"--user-data-dir={profile}",
            f"--window-size={page.width},{page.height}",
            f"--screenshot={picture}",
            f"{(folder / page.file).as_uri()}#{page.part}",
        ]
        subprocess.run(words, capture_output=True, timeout=120, check=True)


def browser() -> str:
    """The first browser that is here."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        sys.exit(f"make pictures needs a browser. Install one of {', '.join(BROWSERS)}.")
    return found


def draw_terminal(command: str, picture: Path) -> None:
    """Draw a terminal with a command and what it prints."""
    from rich.console import Console
    from rich.text import Text

    lines = [f"$ replicax {command}", *shown(run(command))]
    console = Console(record=True, width=max(map(len, lines)) + 1, file=io.StringIO())
    for line in lines:
        console.print(Text(line))
    console.save_svg(str(picture), title="replicax")


def shown(output: str) -> Iterator[str]:
    """The lines of an output, without the folders of this machine."""
    for line in output.splitlines():
        yield line.replace(f"{ROOT}/", "").replace(str(Path.home()), "~")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
