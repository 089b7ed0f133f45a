"""The seams in Keras are there as soon as they are needed, and Keras is not imported for them."""

import pytest

from helpers import run_python

FIT = """
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
rows = np.ones((4, 2), "float32"), np.ones((4, 1), "float32")
print(len(model.fit(Dataset.from_tensor_slices(rows).batch(2), verbose=0).history["loss"]))
"""


def test_data_sets_do_not_import_keras():
    code = "import sys; from replicax.data import Dataset; Dataset.range(3).batch(2)"
    assert run_python(f"{code}; print('keras' in sys.modules)") == "False\n"


def test_fit_of_a_plain_model_reads_data_sets():
    imports = "import numpy as np; from replicax.data import Dataset; import keras"
    assert run_python(f"{imports}\n{FIT}") == "1\n"


PLAIN = """
import sys
sys.stderr = sys.stdout
import replicax as rx
{before}
import keras, numpy as np
{scope}:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="plain")
    model.compile("sgd", "mse")
{do}(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
"""


@pytest.mark.parametrize(
    ("before", "scope", "do", "warns"),
    [
        ("rx.config", "if True", "model.fit", True),
        ("rx.config", "if True", "model.evaluate", False),
        ("rx.config", "with rx.OneDeviceStrategy('CPU:0').scope()", "model.fit", False),
        ("", "if True", "model.fit", False),
    ],
    ids=["trained without a strategy", "not trained", "has a strategy", "only imports"],
)
def test_a_program_that_trains_without_a_strategy_is_warned_at_its_end(before, scope, do, warns):
    printed = run_python(PLAIN.format(before=before, scope=scope, do=do))
    assert ("'plain'" in printed) is warns
