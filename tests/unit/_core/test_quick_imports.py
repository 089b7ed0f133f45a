"""Imports of JAX and Keras: what is left out of them comes when it is looked at."""

from __future__ import annotations

import importlib
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from replicax._core import quick_imports

from helpers import run_python

LATER, ITSELF, LONG = "_rx_later", "_rx_itself", "_rx_long"


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """Imports a module in whose import others come later; and what has run."""
    ran: list[str] = []
    monkeypatch.setattr(sys, "rx_ran", ran, raising=False)
    note = "import sys\nsys.rx_ran.append(__name__)\n"
    package = tmp_path / LATER
    package.mkdir()
    (package / "__init__.py").write_text(f"{note}from {LATER}.below import two\none = two - 1\n")
    (package / "below.py").write_text(f"{note}two = 2\nfrom {LATER} import beside\n")
    (package / "beside.py").write_text(f"{note}three = 3\n")
    (tmp_path / f"{ITSELF}.py").write_text(f"import {ITSELF}\n{ITSELF}.nothing\n")
    names = {LATER, f"{LATER}.below", ITSELF}
    monkeypatch.setattr(quick_imports, "_LATER", names)
    monkeypatch.setattr(quick_imports, "_LONG", [LONG])
    monkeypatch.setattr(quick_imports, "_wanted", set())
    monkeypatch.syspath_prepend(tmp_path)
    quick_imports.quicken()

    def imported(more=""):
        text = f"import {LATER}\nfrom {LATER} import below\nimport {ITSELF}\n{more}\n"
        (tmp_path / f"{LONG}.py").write_text(text)
        return importlib.import_module(LONG), ran

    yield imported
    for name in [name for name in sys.modules if name.startswith("_rx_")]:
        del sys.modules[name]


ALL = [LATER, f"{LATER}.below", f"{LATER}.beside"]


def test_a_module_runs_when_it_is_looked_at_its_package_first(importing):
    module, ran = importing()
    assert ran == []
    assert not [name for name in sys.modules if name.startswith((LATER, ITSELF))]
    assert module.below.two == 2
    assert ran == ALL
    assert getattr(module, LATER).one == 1
    assert "one" in dir(getattr(module, LATER))
    assert ran == ALL


def test_others_import_it_as_ever(importing):
    module, ran = importing()
    beside = importlib.import_module(f"{LATER}.beside")
    assert ran == ALL
    assert beside.three == 3
    later = importlib.import_module(LATER)
    assert type(later) is type(sys)
    assert (later.one, later.below.two) == (1, 2)
    later.one = 5  # as who patches it does
    assert getattr(module, LATER).one == 5


@pytest.mark.parametrize(
    "more", [f"{LATER}.one", "below.two", f"import {LATER}.beside\n{LATER}.one", "dir(below)"]
)
def test_what_is_looked_at_meanwhile_is_loaded_then(importing, more):
    module, ran = importing(more)
    assert ran == ALL
    assert (getattr(module, LATER).one, module.below.two) == (1, 2)
    assert ran == ALL


def test_what_is_not_there_is_an_ordinary_error(importing):
    module, _ = importing()
    with pytest.raises(AttributeError, match="has no attribute 'three'"):
        _ = module.below.three
    with pytest.raises(AttributeError, match="partially initialized .* no attribute 'nothing'"):
        _ = getattr(module, ITSELF).anything


def test_a_module_runs_once_whoever_looks(importing):
    module, ran = importing()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: module.below.two, range(4)))
    assert found == [2] * 4
    assert len(ran) == len(set(ran))


def test_a_module_that_fails_says_so_to_whoever_looks(importing, monkeypatch):
    module, ran = importing()
    monkeypatch.delattr(sys, "rx_ran")
    for _ in range(2):
        with pytest.raises(AttributeError, match="rx_ran"):
            _ = module.below.two
    monkeypatch.setattr(sys, "rx_ran", ran, raising=False)
    assert module.below.two == 2


def test_a_module_that_was_not_looked_at_travels_by_its_name(importing):
    module, ran = importing()
    sent = pickle.dumps(module.below)
    assert ran == []
    assert pickle.loads(sent).two == 2


def test_keras_imports_less_and_all_of_it_works_as_ever():
    program = """
        import gc, pkgutil, sys
        import replicax as rx
        rx.MirroredStrategy
        import keras
        late = {"urllib3", "h5py._hl", "scipy.linalg", "jax._src.pallas.primitives"}
        print(gc.isenabled(), *late & set(sys.modules))
        from requests.adapters import HTTPAdapter
        import h5py._hl.files
        source = pkgutil.get_data("requests", "api.py")
        print(HTTPAdapter.__name__, h5py.File.__name__, bool(source))
        import requests, scipy.sparse
        print(requests.get.__name__, scipy.sparse.csr_matrix((3, 2)).shape)
        print(scipy.sparse.linalg.spsolve.__name__, scipy.sparse.linalg.__name__)
        from jax.experimental import pallas
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
        print(pallas.pallas_call.__name__, splash_attention_kernel.BlockSizes.__name__)
    """
    first, *rest = run_python(program).splitlines()
    assert first == "True"
    wanted = (
        "HTTPAdapter File True",
        "get (3, 2)",
        "spsolve scipy.sparse.linalg",
        "pallas_call BlockSizes",
    )
    assert rest == list(wanted)


def test_keras_saves_weights_with_what_it_imports_later(tmp_path):
    program = f"""
        import replicax as rx
        rx.MirroredStrategy
        import keras
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.save_weights({str(tmp_path / "of.weights.h5")!r})
        before = model.layers[0].kernel.numpy().tolist()
        model.layers[0].kernel.assign([[1.0], [2.0]])
        model.load_weights({str(tmp_path / "of.weights.h5")!r})
        print(model.layers[0].kernel.numpy().tolist() == before)
    """
    assert run_python(program) == "True\n"
