"""Which names a program uses, under any import, and what else is to be looked at."""

import ast
import re
import warnings
from operator import attrgetter
from textwrap import dedent

import keras
import numpy as np
import pytest

from replicax._tools.migrate import names
from replicax._tools.migrate.calls import judge
from replicax._tools.migrate.names import CHANGED, MISSING, SAME, checks, verdict
from replicax.tf._absent import ABSENT, CHANGES


def used(*cells):
    trees = [(("a.py", number, 0), ast.parse(dedent(cell))) for number, cell in enumerate(cells)]
    judged = judge({"a": trees})["a"]
    return sorted((home[1], line, name) for home, line, name in judged.uses)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import tensorflow as tf\ntf.data.Dataset.range(3)", ["tf.data.Dataset.range"]),
        ("import tensorflow\ntensorflow.cast(x)", ["tf.cast"]),
        ("import tensorflow.keras as K\nK.Model", ["tf.keras", "tf.keras.Model"]),
        ("import tensorflow.keras.layers\ntensorflow.abs", ["tf.keras.layers", "tf.abs"]),
        ("from tensorflow import keras\nkeras.Model()", ["tf.keras", "tf.keras.Model"]),
        ("from tensorflow.nn import relu as r\nr(1)", ["tf.nn.relu", "tf.nn.relu"]),
        ("import tensorflow.compat.v1 as t\nt.Session()", ["tf.compat.v1", "tf.compat.v1.Session"]),
        ("import tensorflow.compat.v2 as tf\ntf.abs", ["tf.abs"]),
        ("import keras\nkeras.layers.Dense(1).call", ["keras.layers.Dense"]),
        ("import tensorflow_hub as hub\nhub.load", ["tensorflow_hub", "tensorflow_hub.load"]),
        ("import replicax.tf as tf\ntf.abs(1)", ["tf.abs"]),
        ("import tensorflow_datasets as tfds\ntfds.load", ["tensorflow_datasets.load"]),
        ("import replicax.tf.datasets as tfds\ntfds.load", ["tensorflow_datasets.load"]),
        ("import tensorflow as tf\nl = tf.keras.layers\nl.Dense(l)",
         ["tf.keras.layers", "tf.keras.layers.Dense"]),
        ("import numpy as np\nnp.abs(tf)\nfrom .tensorflow import x", []),
        ("from tensorflow import *", []),
    ],
)  # fmt: skip
def test_names(text, names):
    assert [name for _, _, name in used(text)] == names


def test_lines_and_names_of_pieces_above():
    found = used("import tensorflow as tf", "\n\ntf.abs(\n  tf.cast(1))")
    assert found == [(1, 3, "tf.abs"), (1, 4, "tf.cast")]


def test_a_local_name_hides_an_imported_one():
    text = "from tensorflow import abs, cast\ndef f(abs):\n    abs(1)\n    cast(1)\n"
    assert [name for _, line, name in used(text) if line > 1] == ["tf.cast"]


def test_verdicts():
    assert verdict("tf.distribute.ReduceOp.SUM").kind == SAME
    changed = verdict("tf.train.Checkpoint.restore")
    assert changed.kind == CHANGED
    assert "checked at once" in changed.what
    assert verdict("tf.distribute.Strategy.no_such_method").kind == MISSING
    assert verdict("tf.sparse.split").what == ABSENT["tf.sparse.split"]
    assert verdict("tf.sparse.to_dense").kind in (SAME, CHANGED)
    assert verdict("tensorflow_hub.KerasLayer").kind == MISSING
    assert verdict("keras.layers.Dense").kind == SAME
    assert verdict("keras.utils.np_utils").what == "Keras 3 does not have it."
    assert verdict("tf.no_such_name").what.startswith("Look for it in")


def test_verdicts_on_version_1_are_those_on_version_2_where_both_mean_the_same():
    for name in ("abs", "nn.relu", "data.Dataset", "train.Checkpoint.restore"):
        assert verdict(f"tf.compat.v1.{name}") == verdict(f"tf.{name}")
    method = "data.Dataset.make_one_shot_iterator"
    assert verdict(f"tf.compat.v1.{method}") == verdict(f"tf.{method}")
    other = verdict("tf.compat.v1.nn.dropout")
    assert other.kind == MISSING and "keep_prob" in other.what and not other.ends
    assert "tf.keras" in verdict("tf.compat.v1.keras.layers.LSTM").what
    assert verdict("tf.compat.v1.placeholder").ends


def test_the_lists_are_sorted():
    assert list(CHANGES) == sorted(CHANGES)
    assert list(ABSENT) == sorted(ABSENT)


PROGRAM = """\
import os, importlib
import tensorflow as tf
os.environ["TF_CONFIG"] = "{}"
@tf.function
def step(x, flag=None):
    y = tf.abs(x)
    if tf.reduce_sum(x) > 0:
        pass
    return y.numpy()  # 9
def plain(x):
    if x > 0:
        return x.numpy()
    return x
step.compile(jit_compile=False)  # 14
v.value()  # 15
importlib.import_module("tensorflow")  # 16
"""


def test_what_is_no_name():
    texts = dict(checks(ast.parse(PROGRAM)))
    assert sorted(texts) == [3, 9, 15, 16]
    assert "replicax run" in texts[3]


def test_data_sets_of_tensorflow():
    assert verdict("tensorflow_datasets.load").kind == CHANGED
    assert verdict("tensorflow_datasets.as_numpy").kind == SAME


def test_a_name_whose_value_is_none_is_here():
    assert verdict("tf.newaxis").kind == SAME


def test_the_advice_for_tensorflow_addons_names_what_there_is():
    for name in ("optimizers.AdamW", "activations.mish", "metrics.F1Score"):
        assert f"`keras.{name}`" in verdict(f"tensorflow_addons.{name}").what
    assert verdict("tensorflow_addons.layers.InstanceNormalization").kind == MISSING
    advice = " ".join(what for name, what in ABSENT.items() if name.startswith("tensorflow_addons"))
    for name in re.findall(r"`keras\.([\w.]+)", advice):
        assert attrgetter(name)(keras) is not None


def test_names_of_numpy_1():
    for name, new in names.RENAMED.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not hasattr(np, name)
        assert eval(new, {"np": np}) is not None
    tree = ast.parse("np.float = float\nnp.Inf\nnp.inf\nnp.asscalar(x)\nfrom numpy import product")
    found = sorted((line, done) for line, _, done in names.of_numpy_1(tree))
    assert found == [(2, True), (4, False), (5, False)]
