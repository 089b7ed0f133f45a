"""Imports of JAX and Keras: what is left out of them comes when it is looked at."""

from __future__ import annotations

import importlib
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from replicax._core import quick_imports

from helpers import run_python

LATER, ITSELF = "_rx_later", "_rx_itself"


@pytest.fixture
def importing(tmp_path, monkeypatch):
    """A module whose imports are deferred: a package, and a module of it; what has run."""
    ran: list[str] = []
    monkeypatch.setattr(sys, "rx_ran", ran, raising=False)
    note = "import sys\nsys.rx_ran.append(__name__)\n"
    package = tmp_path / LATER
    package.mkdir()
    (package / "__init__.py").write_text(f"{note}from {LATER}.below import two\none = two - 1\n")
    (package / "below.py").write_text(f"{note}two = 2\nfrom {LATER} import beside\n")
    (package / "beside.py").write_text(note)
    (tmp_path / f"{ITSELF}.py").write_text(f"import {ITSELF}\n{ITSELF}.nothing\n")
    text = f"import {LATER}\nfrom {LATER} import below\nimport {ITSELF}\n"
    (tmp_path / "_rx_importer.py").write_text(text)
    names = [LATER, f"{LATER}.below", ITSELF]
    monkeypatch.setattr(quick_imports, "_DEFERRED", names)
    monkeypatch.setattr(quick_imports, "_LONG", ["_rx_importer"])
    monkeypatch.syspath_prepend(tmp_path)
    quick_imports.quicken()
    yield importlib.import_module("_rx_importer"), ran
    for finder in sys.meta_path:
        for name in names:
            getattr(finder, "_deferred", {}).pop(name, None)
    for name in [name for name in sys.modules if name.startswith("_rx_")]:
        del sys.modules[name]


def test_a_module_runs_when_it_is_looked_at_its_package_first(importing):
    module, ran = importing
    assert ran == []
    assert module.below.two == 2
    assert ran == [LATER, f"{LATER}.below", f"{LATER}.beside"]
    assert getattr(module, LATER).one == 1
    assert type(module.below) is type(sys)
    assert importlib.import_module(LATER) is getattr(module, LATER)


def test_what_is_not_there_is_an_ordinary_error(importing):
    module, _ = importing
    with pytest.raises(AttributeError, match="has no attribute 'three'"):
        _ = module.below.three
    with pytest.raises(AttributeError, match="the module's code has not made .*nothing yet"):
        _ = getattr(module, ITSELF).anything


def test_a_module_runs_once_whoever_looks(importing):
    module, ran = importing
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: module.below.two, range(4)))
    assert found == [2] * 4
    assert len(ran) == len(set(ran))


def test_a_module_that_fails_says_so_to_whoever_looks(importing, monkeypatch):
    module, ran = importing
    monkeypatch.delattr(sys, "rx_ran")
    for _ in range(2):
        with pytest.raises(AttributeError, match="rx_ran"):
            _ = module.below.two
    monkeypatch.setattr(sys, "rx_ran", ran, raising=False)
    assert module.below.two == 2


def test_a_module_that_was_not_looked_at_travels_by_its_name(importing):
    module, ran = importing
    assert pickle.loads(pickle.dumps(module.below)) is module.below
    assert ran == []
    assert "two" in dir(module.below)


def test_keras_imports_less_and_all_of_it_works_as_ever():
    program = """
        import gc, sys
        import replicax as rx
        rx.MirroredStrategy
        import keras
        late = {"urllib3", "h5py._hl", "scipy.linalg", "jax._src.pallas.primitives"}
        print(gc.isenabled(), *late & set(sys.modules))
        import requests, scipy.sparse
        print(requests.get.__name__, scipy.sparse.csr_matrix((3, 2)).shape)
        print(scipy.sparse.linalg.spsolve.__name__, scipy.sparse.linalg.__name__)
        from jax.experimental import pallas
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel
        print(pallas.pallas_call.__name__, splash_attention_kernel.BlockSizes.__name__)
    """
    first, *rest = run_python(program).splitlines()
    assert first == "True"
    wanted = "get (3, 2)", "spsolve scipy.sparse.linalg", "pallas_call BlockSizes"
    assert rest == list(wanted)
