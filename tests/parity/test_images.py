"""`tf.image` gives the numbers of TensorFlow: on the host, and on devices."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax.tf as tf

from . import image_cases

RECORDED = json.loads(Path(__file__).with_name("recorded_images.json").read_text())


@pytest.mark.parametrize("name", sorted(RECORDED))
@pytest.mark.parametrize("where", ["host", "device"])
def test_numbers(name, where, monkeypatch):
    if where == "device":
        monkeypatch.setattr(image_cases, "BYTES", jnp.asarray(image_cases.BYTES))
        monkeypatch.setattr(image_cases, "FLOATS", jnp.asarray(image_cases.FLOATS))
    dtype, values = RECORDED[name]
    found = image_cases.CASES[name](tf)
    assert isinstance(found, np.ndarray if where == "host" else jax.Array)
    assert str(found.dtype) == dtype
    # Whole numbers: what is between two may be rounded either way.
    atol = 2e-5 if found.dtype == np.float32 else 1.01
    # TensorFlow takes the weights of "bicubic" from a table of 1024 entries.
    atol = 0.2 if "bicubic" in name else atol
    np.testing.assert_allclose(np.asarray(found, "float64"), values, atol=atol, rtol=1e-4)
