"""Kernels that want no more than a compiler of C: what there is without one, or if it fails."""

from __future__ import annotations

import logging
from contextlib import nullcontext

import pytest

from replicax._core.adam_kernel import library as adam
from replicax._core.attention_kernel import library as attention
from replicax._core.handlers import building
from replicax._core.row_products import rule as row_products
from replicax._core.table_kernel import library as tables

kernels = pytest.mark.parametrize("library", [adam, attention, row_products, tables])


@kernels
def test_without_a_compiler_there_is_no_kernel(library, monkeypatch):
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    assert not library.is_there.__wrapped__()


@pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler")
@kernels
def test_a_compiler_that_fails_is_told_of(library, monkeypatch, caplog, tmp_path):
    broken = tmp_path / "broken.c"
    broken.write_text('#include "no such header"\n')
    monkeypatch.setattr(library, "_SOURCE", broken)
    with caplog.at_level(logging.INFO, "replicax"):
        assert not library.is_there.__wrapped__()
    assert "no such header" in caplog.text


@pytest.mark.skipif(building.compiler() is None, reason="there is no C compiler")
def test_a_compiler_has_no_longer_than_is_left(monkeypatch, tmp_path, caplog):
    slow = tmp_path / "cc"
    slow.write_text("#!/bin/sh\nexec sleep 1000\n")
    slow.chmod(0o755)
    monkeypatch.setattr(building.shutil, "which", lambda name: str(slow))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(building.ahead, "turn", lambda *_: nullcontext(0.125))
    with caplog.at_level(logging.INFO, "replicax"):
        assert not adam.is_there.__wrapped__()
    assert "timed out after 0.125 seconds" in caplog.text
