"""Kernels that want no more than a compiler of C: what there is without one, or if it fails."""

from __future__ import annotations

import logging

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
