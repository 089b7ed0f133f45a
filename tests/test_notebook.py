"""The starter notebook, run by a real Jupyter kernel."""

from pathlib import Path

import nbclient
import nbformat
import pytest

START = Path(__file__).parents[1] / "examples" / "start.ipynb"


@pytest.mark.timeout(300)
def test_it_runs_and_installs_nothing_here():
    book = nbformat.read(START, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    nbclient.NotebookClient(book, timeout=240, kernel_name="python3").execute()
    install, _, strategy, fit, loop, workers = (
        "".join(output.get("text", "") for output in cell.outputs)
        for cell in book.cells
        if cell.cell_type == "code"
    )
    assert install == ""
    assert "2 replica(s)" in strategy
    assert float(fit.rpartition("accuracy: ")[2]) > 0.9
    assert loop.startswith("24 steps")
    assert "replicas: [4, 4]" in workers
