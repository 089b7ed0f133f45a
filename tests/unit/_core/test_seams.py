"""The seams in Keras are there as soon as they are needed, and Keras is not imported for them."""

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
