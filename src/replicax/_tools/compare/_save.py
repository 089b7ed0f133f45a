"""The files of a comparison: tables, raw numbers and pictures in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import replicax as rx
from replicax._core.errors import needs
from replicax._tools.compare import _render

if TYPE_CHECKING:
    from types import ModuleType

    from replicax._tools.compare._comparison import Comparison


PAGE = "report.html"


def save(comparison: Comparison, folder: str | Path) -> tuple[Path, ...]:
    """Write report.html, compare.md, compare.json, accuracy.png and throughput.png.

    The folder is made if it is not there; files of these names are replaced.
    """
    _page, _plots = drawing()
    place = make_folder(folder)
    page, markdown, raw = place / PAGE, place / "compare.md", place / "compare.json"
    accuracy, throughput = place / "accuracy.png", place / "throughput.png"
    page.write_text(_page.to_html(comparison), encoding="utf-8")
    markdown.write_text(_render.to_markdown(comparison), encoding="utf-8")
    raw.write_text(_render.to_json(comparison), encoding="utf-8")
    _plots.save(_plots.accuracy_by_epoch, comparison, accuracy)
    _plots.save(_plots.throughput, comparison, throughput)
    return page, markdown, raw, accuracy, throughput


def drawing() -> tuple[ModuleType, ModuleType]:
    """The modules that make the page and the pictures."""
    with needs("Drawing a comparison", extra="report"):
        from replicax._tools.compare import _page, _plots
    return _page, _plots


def make_folder(folder: str | Path) -> Path:
    """Make a folder, unless it is there."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise rx.errors.UsageError(
            "The output must be a folder that can be made or is there. "
            f"Received: {str(folder)!r}, which gives: {error.strerror}. "
            "The report is several files. Name another folder with --output."
        ) from error
    return Path(folder)
