"""Notebooks that train under strategies, run by a real Jupyter kernel."""

from __future__ import annotations

from pathlib import Path

import nbclient
import nbformat
import pytest

START = Path(__file__).parents[1] / "examples" / "start.ipynb"

pytestmark = pytest.mark.timeout(300)

CELLS = [
    """
import replicax as rx
rx.testing.virtual_devices(2)
import keras
import numpy as np
strategy = rx.MirroredStrategy()
x = np.arange(80, dtype="float32").reshape(20, 4) / 80
y = x.sum(axis=1, keepdims=True)
""",
    """
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
history = model.fit(x, y, batch_size=8, epochs=2)
""",
    """
@rx.function
def step(batch):
    return strategy.reduce("SUM", strategy.run(lambda rows: rows.sum(), args=(batch,)), axis=None)

print(sum(float(step(batch)) for batch in strategy.experimental_distribute_dataset([x])))
""",
    "raise ValueError(f'{strategy.num_replicas_in_sync} replicas')",
    "first, second = history.history['loss']; print(second < first)",
]


def printed_by(book, **options):
    """Run a notebook; return what each cell of code printed, or its error."""
    client = nbclient.NotebookClient(book, timeout=240, kernel_name="python3", **options)
    client.execute()
    return [
        "".join(output.get("text", output.get("evalue", "")) for output in cell.outputs)
        for cell in book.cells
        if cell.cell_type == "code"
    ]


def test_a_notebook_trains_and_goes_on_after_an_error():
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    printed = printed_by(book, allow_errors=True)
    assert "Epoch 2/2" in printed[1]
    assert float(printed[2]) == pytest.approx(sum(range(80)) / 80)
    assert printed[3] == "2 replicas"
    assert printed[4].split() == ["True"]


def test_the_starter_notebook_runs_and_installs_nothing_here():
    book = nbformat.read(START, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells)
    install, _, strategy, fit, loop, workers = printed_by(book)
    assert install == ""
    assert "2 replica(s)" in strategy
    assert float(fit.rpartition("accuracy: ")[2]) > 0.9
    assert loop.startswith("24 steps")
    assert "replicas: [4, 4]" in workers
