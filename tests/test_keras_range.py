"""The tests that meet Keras, once more with the lowest Keras we support."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import completed

ROOT = Path(__file__).resolve().parents[1]
KERAS_FOLDER = Path(sys.prefix) / "keras-lowest"
LOWEST = "3.12.0"
SECONDS = 1500  # for what takes two minutes; the machine may be busy, or slow

ROOMS = ["tests/unit/_keras", "tests/unit/_fit"]
FILES = ("_function/test_function", "_tape/test_tape")
FILES += ("tf/test_flow", "tf/test_older_spellings", "tf/test_uncalled")
ROOMS += [f"tests/unit/{name}.py" for name in FILES]

LEFT_OUT = ("central_storage", "[one_device", "[mirrored_3", "random_configurations")
LEFT_OUT += ("test_attention", "test_local_steps", "turn_images", "jacobians")
LEFT_OUT += ("through_a_compiled_function",)  # which meet JAX

pytestmark = [
    pytest.mark.timeout(SECONDS + 30),
    pytest.mark.skipif(
        not KERAS_FOLDER.is_dir(),
        reason=f"Keras {LOWEST} is not installed; `make keras-range` installs it, then runs this",
    ),
]


def run_with_lowest_keras(*arguments):
    """Run Python on `arguments` with the lowest Keras ahead of the installed one."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    path = os.pathsep.join(filter(None, [str(KERAS_FOLDER), environ.get("PYTHONPATH")]))
    environ |= {"PYTHONPATH": path, "KERAS_BACKEND": "jax"}
    how = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "seconds": SECONDS}
    return completed([sys.executable, *arguments], cwd=ROOT, env=environ, **how)


def test_the_folder_holds_the_lowest_supported_keras():
    lower_bound = f'"keras>={LOWEST.removesuffix(".0")},'
    assert lower_bound in (ROOT / "pyproject.toml").read_text()
    finished = run_with_lowest_keras("-c", "import keras; print(keras.__version__)")
    assert finished.stdout.split()[-1:] == [LOWEST], finished.stdout


@pytest.mark.parametrize(
    "chosen",
    [
        # The others differ from mirrored replicas by their stores alone, and many shapes are for
        # kernels: a few show what Keras asks them for.
        [*ROOMS, "-m", "not slow", "-k", f"not {' and not '.join(LEFT_OUT)}"],
        ["tests/conformance/test_fit.py", "-k", "test_core and (mirrored or central_storage_4)"],
    ],
    ids=["capture", "fit"],
)
def test_the_lowest_supported_keras_passes(chosen):
    finished = run_with_lowest_keras("-m", "pytest", "-p", "no:xdist", "-q", *chosen)
    assert finished.returncode == 0, finished.stdout
