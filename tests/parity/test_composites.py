"""Sparse and ragged tensors give what TensorFlow's give: by themselves, and in pipelines."""

import json
from pathlib import Path

import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.tracing import call_in_pipeline

from . import composite_cases

RECORDED = json.loads(Path(__file__).with_name("recorded_composites.json").read_text())


def alone(fn):
    return fn()


@pytest.mark.parametrize("call", [alone, call_in_pipeline], ids=["alone", "in a pipeline"])
@pytest.mark.parametrize("name", composite_cases.CASES)
def test_results(name, call):
    case, recorded = composite_cases.CASES[name], RECORDED[name]
    if recorded is None:
        with pytest.raises((ValueError, IndexError)):
            call(lambda: case(tf))
        return
    # Through JSON, as what was recorded: tuples are lists there, NaN is NaN.
    found = call(lambda: json.loads(json.dumps(composite_cases.described(tf, case(tf)))))
    assert_same(found, recorded)


def assert_same(found, recorded):
    if isinstance(recorded, dict) and "array" in recorded:
        assert found["kind"] == recorded["kind"]
        if recorded["kind"] == "O":
            assert found["array"] == recorded["array"]
        else:
            assert np.shape(found["array"]) == np.shape(recorded["array"])
            np.testing.assert_allclose(found["array"], recorded["array"], rtol=1e-5, atol=1e-6)
    elif isinstance(recorded, dict):
        assert found.keys() == recorded.keys()
        for key, value in recorded.items():
            assert_same(found[key], value)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded)
        for one, other in zip(found, recorded, strict=True):
            assert_same(one, other)
    else:
        assert found == recorded
