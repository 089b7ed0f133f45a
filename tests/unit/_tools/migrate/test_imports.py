"""Imports are rewritten, and nothing else."""

import libcst
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax._tools.migrate.imports import rewritten

CASES = {
    "import tensorflow as tf": "import replicax.tf as tf",
    "import tensorflow": "import replicax.tf as tensorflow",
    "import tensorflow.keras as K": "import replicax.tf.keras as K",
    "import tensorflow.keras.layers": "import replicax.tf as tensorflow",
    "import os, tensorflow as tf  # both": "import os, replicax.tf as tf  # both",
    "import tensorflow.compat.v2 as tf": "import replicax.tf as tf",
    "import tensorflow.compat.v1 as tf": "import replicax.tf.compat.v1 as tf",
    "from tensorflow.compat import v1": "from replicax.tf.compat import v1",
    "from tensorflow import keras": "from replicax.tf import keras",
    "from tensorflow.compat.v2 import keras": "from replicax.tf import keras",
    "from tensorflow.keras import layers  as L": "from replicax.tf.keras import layers  as L",
    "from tensorflow.keras.layers import (\n    Dense,  # a\n)": (
        "from replicax.tf.keras.layers import (\n    Dense,  # a\n)"
    ),
    "from tensorflow import *": "from replicax.tf import *",
    "from tensorflow.python.client import device_lib": (
        "from replicax.tf.python.client import device_lib"
    ),
    "import tensorflow.python.framework.tensor_shape as s": (
        "import replicax.tf.python.framework.tensor_shape as s"
    ),
    "try:\n    import tensorflow as tf\nexcept ImportError:\n    tf = None": (
        "try:\n    import replicax.tf as tf\nexcept ImportError:\n    tf = None"
    ),
    "import tensorflow_datasets as tfds": "import replicax.tf.datasets as tfds",
    "import tensorflow_datasets.public_api as tfds": "import replicax.tf.datasets as tfds",
    "import tensorflow_datasets": "import replicax.tf.datasets as tensorflow_datasets",
    "from tensorflow_datasets import load": "from replicax.tf.datasets import load",
    "import keras": "import replicax.tf.keras as keras",
    "import keras.layers": "import replicax.tf.keras as keras",
    "import keras.layers as kl": "import replicax.tf.keras.layers as kl",
    "from keras.layers import Dense": "from replicax.tf.keras.layers import Dense",
    "import os\nos.environ['KERAS_BACKEND'] = 'tensorflow'": (
        "import os\nos.environ['KERAS_BACKEND'] = 'jax'"
    ),
    'os.environ.setdefault("KERAS_BACKEND", "tensorflow")': (
        'os.environ.setdefault("KERAS_BACKEND", "jax")'
    ),
    "best = -np.Inf": "best = -np.inf",
    "x = numpy.product(y.astype(np.float)) ** np.NINF": (
        "x = numpy.prod(y.astype(float)) ** (-np.inf)"
    ),
    'keras.config.set_backend("tensorflow")': 'keras.config.set_backend("jax")',
}
KEPT = [
    "import tensorflow.contrib.slim as slim",
    "from tensorflow import python",
    "from tensorflow.python.ops import math_ops",
    "import tensorflow_datasets.core.utils as utils",
    "np.float = float\nx: math.Inf = tf.int\nnp.random.int",
    "from . import tensorflow",
    "from .tensorflow import keras",
    "from keras.src.backend import standardize_dtype",
    "import numpy as np\nx = 'tensorflow'",
    "os.environ['OTHER'] = 'tensorflow'",
    "import replicax.tf as tf",
    "",
]


@pytest.mark.parametrize("before", CASES)
def test_rewritten(before):
    assert rewritten(before) == CASES[before]


@pytest.mark.parametrize("text", KEPT)
def test_kept(text):
    assert rewritten(text) is text


_LINES = st.sampled_from([*CASES, *KEPT, "def f():\n\treturn 1", "x = (1,\n     2)  # c", "\n\n"])


@given(st.lists(_LINES, max_size=8), st.sampled_from(["\n", "\r\n"]))
def test_a_second_time_changes_nothing(lines, end):
    text = "\n".join(lines).replace("\n", end)
    once = rewritten(text)
    assert rewritten(once) == once
    libcst.parse_module(once)
    assert ("\r\n" in once) == ("\r\n" in text)
    if not any(word in text for word in ("tensorflow", "keras", "np.Inf", "numpy.product")):
        assert once == text
