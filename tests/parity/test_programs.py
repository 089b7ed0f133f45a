"""Small programs give what they gave in TensorFlow, whose results were recorded."""

import json
from pathlib import Path

import numpy as np
import pytest

import replicax.tf as tf

from .program_cases import CASES

RECORDED = json.loads(Path(__file__).with_name("recorded_programs.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_tensorflow_gave(name, monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", True)
    compare(CASES[name](tf), RECORDED[name])


def compare(found, expected):
    if isinstance(found, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            compare(one, other)
        return
    array = np.asarray(found)
    assert array.shape == np.shape(expected)
    np.testing.assert_allclose(array.astype("float64"), expected, rtol=2e-5, atol=1e-6)


def test_every_recorded_program_is_run():
    assert set(RECORDED) == {"version", *CASES}
