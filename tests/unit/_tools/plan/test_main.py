"""`replicax plan`: what the child process does with its options."""

import json
import signal

import keras
import pytest

from replicax._tools.commands import main

from helpers import uninstall

OPTIONS = {
    "args": [],
    "topologies": ["cpu:2"],
    "strategies": ["mirrored"],
    "batch": None,
    "bisect": False,
    "precision": None,
    "json": None,
    "plot": None,
    "scale": [],
}


@pytest.fixture
def run(capsys):
    before = signal.getsignal(signal.SIGTERM)

    def run(**options):
        return main(["plan", json.dumps(OPTIONS | options)]), *capsys.readouterr()

    yield run
    signal.signal(signal.SIGTERM, before)
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import keras\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name='tiny')\n"
        "model.compile('sgd', 'mse')\n"
    )
    return str(path)


def test_a_picture_needs_matplotlib(run, script, tmp_path, monkeypatch):
    uninstall(monkeypatch, "matplotlib", "replicax._tools.plan.plot")
    code, out, err = run(target=script, plot=str(tmp_path / "plan.png"))
    assert (code, out) == (2, "")  # before anything was planned
    assert "Run `pip install 'replicax[report]'`." in err


def test_a_plan_is_printed_and_written(run, script, tmp_path):
    files = {"json": str(tmp_path / "plan.json"), "plot": str(tmp_path / "plan.png")}
    code, out, err = run(target=script, batch=12, **files)
    assert (code, err) == (0, "")
    assert "tiny (10 parameters)" in out
    assert json.loads((tmp_path / "plan.json").read_text())["rows"][0]["batch"] == 12
    assert (tmp_path / "plan.png").exists()


def test_other_numbers_of_devices(run, script):
    code, out, _ = run(target=script, topologies=["cpu:4"], batch=16, scale=[1, 4, 64])
    assert code == 0
    assert "cpu:2 mirrored: compiling for a batch of 16" in out  # half of it, to check


def test_precision_is_that_of_the_layers(run, script):
    code, out, _ = run(target=script, precision="bfloat16")
    assert code == 0
    assert "20 B" in out  # ten parameters of two bytes
