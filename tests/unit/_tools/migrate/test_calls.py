"""Calls are judged by what is called, and by what it takes; what is not known is said to be so."""

import ast
import inspect
from textwrap import dedent

import pytest

from replicax._tools.migrate import kinds
from replicax._tools.migrate.calls import LOOK, judge
from replicax._tools.migrate.names import CHANGED, MISSING
from replicax.tf._absent import STEPS

HEAD = "import tensorflow as tf, numpy as np\nfrom tensorflow import keras\n"


def judged(**files):
    sources = {
        name.replace("__", "."): [((name, 0, 0), ast.parse(HEAD + dedent(text)))]
        for name, text in files.items()
    }
    return judge(sources)


def remarks(text, kind=MISSING):
    found = judged(main=text)["main"].remarks
    return [remark.text for _, _, remark in found if remark.kind == kind]


WRONG = {
    "an unknown argument": ("keras.layers.Dense(3, unit=4)", "takes no `unit`"),
    "too many": ("tf.nn.relu(1, 'name', 2, 3)", "too many positional"),
    "too few": ("tf.cast(1)", "missing a required argument: 'dtype'"),
    "Keras 2's argument": (
        "keras.Model().compile('sgd', sample_weight_mode='temporal')",
        "Keras 3 has no `sample_weight_mode",
    ),
    "a method": ("tf.data.Dataset.range(3).map(abs, threads=2)", "takes no `threads`"),
    "a method that is gone": ("m = keras.Sequential()\nm.fit_generator(1)", "`fit` takes gen"),
    "a method without advice": ("tf.data.Dataset.range(3).batch(1).filtered()", "no `filtered`"),
    "in a scope": (
        ("s = tf.distribute.MirroredStrategy()\nwith s.scope():\n  m = keras.Model()\n"
            "m.fit(1, bad=2)"),
        "takes no `bad`",
    ),
    "a strategy": ("tf.distribute.get_strategy().experimental_run_v2(abs)", "It is `run`"),
    "what NumPy makes of a tensor": (
        "m = keras.Model()\np = m(1)\nnp.random.choice(2, p=np.squeeze(p))",
        "np.asarray",
    ),
    "a tape": ("with tf.GradientTape() as t: pass\nt.gradient(1)", "'sources'"),
    "a variable": ("v = tf.Variable(1.0)\nv.load(2.0, None)", "Use `assign`"),
    "what a function returns": (
        "def make():\n  return keras.Sequential()\nmake().predict_classes(1)",
        "`predict(x).argmax",
    ),
    "what a function is called with": (
        "def use(m, n=1):\n  m.to_yaml()\nuse(keras.Model(), n=2)",
        "Use `to_json`",
    ),
    "an annotation": ("def use(m: keras.Model):\n  m.to_yaml()", "Use `to_json`"),
    "an attribute of self": (
        """
        class Trainer:
            def __init__(self):
                self.data = None
                self.data = tf.data.Dataset.range(3)
            def go(self):
                self.data.make_one_shot_iterator()
        """,
        "Use `iter(dataset)`",
    ),
    "either of two": (
        ("if np.x:\n  o = keras.optimizers.SGD()\nelse:\n  o = keras.optimizers.Adam()\n"
            "o.get_updates()"),
        "Use `apply_gradients`",
    ),
    "unpacked": (
        "def both():\n  return keras.Model(), 1\nm, n = both()\nm.predict_proba(1)",
        "Use `predict`",
    ),
    "a list": ("for m in [keras.Model()]:\n  m.predict_proba(1)", "Use `predict`"),
    "super": (
        "class D(keras.layers.Dense):\n  def __init__(self):\n    super().__init__(1, axes=2)",
        "takes no `axes`",
    ),
    "handed on": (
        ("class D(keras.layers.Dense):\n  def __init__(self, n, **k):\n"
"    super().__init__(n, **k)\n"
        "D(1, axes=2)"),
        "takes no `axes`",
    ),
    "a subclass's own call": (
        "class M(keras.Model):\n  def call(self, x):\n    return x\nM().fit(1, bad=1)",
        "`bad`",
    ),
    "a hook of Keras 2's optimizers": (
        "class O(keras.optimizers.Optimizer):\n  def _resource_apply_dense(self, g, v):\n    pass",
        "never called. Override `update_step",
    ),
    "an older rule": (
        "class O(keras.optimizers.Optimizer):\n  def update_step(self, g, v):\n    pass",
        "never called",
    ),
    "a data set of its own": (
        "class D(tf.data.Dataset):\n  def _inputs(self):\n    return []",
        "Use `from_generator`",
    ),
    "an iterator of its own": (
        "class I(tf.data.Iterator):\n  def __next__(self):\n    return 1",
        "Use `from_generator`",
    ),
    "a callback's model": (
        ("class C(keras.callbacks.Callback):\n  def on_epoch_end(self, e, logs=None):\n"
        "    self.model.predict_proba(1)"),
        "Use `predict`",
    ),
    "optimizers of a model": (
        ("class C(keras.callbacks.Callback):\n  def on_epoch_end(self, e, logs=None):\n"
        "    self.model.optimizer._decayed_lr('float32')"),
        "Use `learning_rate`",
    ),
    "in a closure": (
        "def main():\n  m = keras.Model()\n  def f():\n    m.predict_proba(1)\n  f()",
        "Use `predict`",
    ),
    "of a star": ("from tensorflow.keras.layers import *\nDense(1, 2, unit=3)", "takes no `unit`"),
    "a message": ("tf.train.Feature(int32_list=1)", "takes no `int32_list`"),
    "of a result": ("tf.abs(1).eval()", "use `.numpy()`"),
    "what compile is given": (
        ("class G(keras.Model):\n  def compile(self, o):\n    super().compile()\n    self.o = o\n"
        "  def train_step(self, x):\n    self.o.add_slot(1, 2)\nG().compile(tf.optimizers.SGD())"),
        "Use `add_variable_from_reference`",
    ),
    "what Keras refuses": (
        "class L(keras.layers.Layer):\n  def call(self, x):\n    self.add_update(x)",
        "Assign in `call`",
    ),
    "an older argument": (
        "m = keras.Model()\nm.train_on_batch(1, reset_metrics=False)", "`model.reset_metrics()`",
    ),
    "a graph's attribute": ("keras.layers.Dense(1).get_output_at(0)", "Use `layer.output`"),
    "a metric that was a layer": ("keras.metrics.Mean().weights", "Use `variables`"),
    "an optimizer's slots": ("keras.optimizers.Adam().add_slot(1, 2)", "Use `add_var"),
    "in a comprehension": ("[m.predict_proba(1) for m in [keras.Model()]]", "Use `predict`"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("keras.Model().layers[0].get_output_at(0)", "Use `layer.output`"),
        ("keras.Model().optimizer.variables()", "parentheses"),
    ],
)
def test_a_method_of_keras_2_is_to_be_looked_at_also_of_what_is_not_known(text, wanted):
    (found,) = remarks(text, LOOK)
    assert wanted in found


@pytest.mark.parametrize("case", WRONG)
def test_a_call_that_fails_is_named(case):
    text, wanted = WRONG[case]
    (found,) = remarks(text)
    assert wanted in found


RIGHT = [
    "o = keras.optimizers.Adam()\no.minimize(lambda: 1.0, [])\no.apply_gradients([])",
    "keras.optimizers.Adam(1e-3, clipnorm=1.0, name='a')",
    "keras.layers.Dense(3, input_shape=(4,), dtype='float32')",
    "keras.layers.Embedding(3, 4, input_length=5)",
    "keras.layers.LSTM(3, implementation=2, return_sequences=True)",
    "tf.train.Checkpoint(model=1, optimizer=2).restore('a').expect_partial()",
    "m = keras.Model(inputs=1, outputs=2)\nm.compile('sgd', 'mse', metrics=['mae'])\nm.fit(1, 2)",
    "m = keras.Model()\nm.optimizer.learning_rate\nm.summary()\nm.save('a.keras')\nm(1).numpy()",
    ("d = tf.data.Dataset.from_tensor_slices([1]).shuffle(3, seed=1)\nd.batch(2, True)\n"
    "d.map(lambda x: tf.cast(x, tf.float32), num_parallel_calls=tf.data.AUTOTUNE).cache()"),
    "v = tf.Variable(1.0, trainable=False)\nv.assign_add(1.0)\nv.numpy()",
    "s = tf.distribute.get_strategy()\ns.reduce('SUM', 1, axis=None).numpy()",
    "keras.layers.AveragePooling2D()\nkeras.layers.AveragePooling2D(strides=2)",
    "class M(keras.metrics.Metric):\n  def reset_states(self):\n    pass",
    "class M(keras.Model):\n  def train_step(self, data):\n    return self.compiled_loss(1, 2)",
    "m = keras.metrics.Mean()\nm.update_state(1)\nm.reset_states()\nm.result().numpy()",
    "keras.models.load_model('a').predict(1).argmax(-1)",
    ("class L(keras.Layer):\n  def build(self, shape):\n    self.w = self.add_weight(shape=(1,))\n"
    "  def call(self, x):\n    return tf.matmul(x, self.w)\nL()(1)"),
    "class L(keras.Layer):\n  def __init__(self, **k):\n    super().__init__(**k)\nL(name='a')",
    ("class M(keras.Model):\n  def __init__(self):\n    super(M, self).__init__()\n"
    "    self.f = keras.layers.Dense(1)\n  def call(self, x):\n    return self.f(x)\nM()(1)"),
    ("class O(keras.optimizers.Optimizer):\n"
    "  def update_step(self, gradient, variable, learning_rate):\n    pass"),
    "tf.function(lambda x: x)(1)\n@tf.function(jit_compile=True)\ndef f(x):\n  tf.abs(x)\nf(1)",
    "e = tf.train.Example(features=tf.train.Features(feature={}))\ne.SerializeToString()",
    "m = keras.Model([keras.Input((3,))], [])\nkeras.Model(m.inputs, m.output)",
    "class D(tf.data.Dataset):\n  def __new__(c, n):\n    return tf.data.Dataset.range(n)\nD(1)",
    "import unittest\nclass T(unittest.TestCase):\n  def test(self):\n    self.assertEqual(1, 1)",
    "print(np.zeros(3).sum())\n'a'.split()\n[].append(1)\n{}.get(1)\nlen([1])",
]  # fmt: skip


@pytest.mark.parametrize("text", RIGHT)
def test_a_call_that_fits_is_checked(text):
    (found,) = judged(main=text).values()
    assert not found.remarks
    assert not found.unchecked


NOTED = {
    "keras.optimizers.SGD(lr=0.1)": "It is `learning_rate`",
    "keras.Model().fit(1, workers=3)": "Has no effect",
    "keras.Model().compile(run_eagerly=True)": "every device computes the whole batch",
    "keras.Model().compile(jit_compile=False)": "run_eagerly=True",
    "keras.Model().save('a', save_format='tf')": "ending decides",
    "keras.callbacks.TensorBoard(write_images=True)": "no images",
    "tf.function(abs, jit_compile=False)": "Compiled by XLA",
}


@pytest.mark.parametrize("text", NOTED)
def test_an_argument_that_means_something_else_is_named(text):
    (found,) = remarks(text, CHANGED)
    assert NOTED[text] in found
    assert not remarks(text)
    assert not remarks("keras.Model().compile(run_eagerly=False, jit_compile=True)", CHANGED)


UNKNOWN = [
    "def f(x):\n  x.fit(1)",
    "import elsewhere_is_no_file as e\nfrom .gone import g\ng(1)",
    "keras.layers.Dense(*np.x)",
    "keras.layers.Dense(**np.x)",
    "a = keras.Model()\na.helper = abs\na.helper(1)",
    "class A(unknown):\n  pass\nA().fit(1)",
    "class M(keras.Model):\n  def f(self): pass\nkeras.callbacks.Callback().model.f()",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_not_known_is_not_judged(text):
    (found,) = judged(main=text).values()
    assert not found.remarks
    assert len(found.unchecked) == 1


def test_the_iterator_of_a_data_set_has_methods_of_its_own():
    assert not remarks("d = tf.data.Dataset.range(3)\niter(d).get_next()")
    assert remarks("d = tf.data.Dataset.range(3)\nfor x in list(d):\n  d.get_next()")


def test_an_array_of_numpy_may_be_chosen_by():
    assert not remarks("np.random.choice(2, p=np.asarray(np.squeeze(keras.Model()(1))))")


def test_files_import_each_other():
    found = judged(
        pkg__nets="def build():\n    return keras.Sequential()",
        pkg__train="from . import nets\nfrom .nets import build\nbuild().to_yaml()\n",
        main="import pkg.train\nfrom pkg import nets\nnets.build().predict_proba(1)",
    )
    texts = {name: [r.text for _, _, r in one.remarks] for name, one in found.items()}
    assert "to_json" in texts["pkg.train"][0]
    assert "Use `predict`" in texts["main"][0]
    assert found["main"].imports == {"pkg.train", "pkg.nets"}
    assert not texts["pkg.nets"]


MADE = """
def twice(x):
  return 2 * x

class Doubling(keras.layers.Layer):
  def call(self, x):
    return keras.layers.Lambda(lambda y: 2 * y)(x)

def make():
  x = keras.Input((2,))
  return keras.Model(x, keras.layers.Lambda({function})(Doubling()(x)))
"""


@pytest.mark.parametrize(
    ("function", "given", "wanted"),
    [
        ("lambda x: 2 * x", "'m.h5'", "safe_mode=False"),
        ("lambda x: 2 * x", "'m.h5', safe_mode=False", None),
        ("twice", "'m.h5', {}", None),  # not known
        ("twice", "'m.h5', compile=False", 'custom_objects={"twice": twice}'),
        ("function=twice", "'m.h5', custom_objects={'other': make}", '"twice": twice'),
        ("twice", "'m.h5', custom_objects={'twice': twice}", None),
        ("twice", "'m.h5', custom_objects={twice.__name__: twice}", None),
        ("twice", "'m.h5', custom_objects={**{}}", None),
        ("tf.nn.relu", "'m.h5'", None),
        ("tf.abs", "'m.h5'", '"abs": tf.abs'),
    ],
)
def test_a_model_with_a_function_is_loaded_with_it(function, given, wanted):
    load = f"from made import *\nkeras.models.load_model({given})"
    found = judged(made=MADE.format(function=function), main=load)
    texts = [remark.text for _, _, remark in found["main"].remarks]
    assert len(texts) == (wanted is not None)
    assert all(wanted in text for text in texts)
    assert not judged(made=MADE.format(function=function))["made"].remarks


@pytest.mark.parametrize(
    "load",
    [
        "with keras.utils.custom_object_scope({'twice': twice}):\n  keras.models.load_model('m')",
        "keras.utils.get_custom_objects()['twice'] = twice\nkeras.models.load_model('m')",
    ],
)
def test_a_function_that_is_registered_needs_no_passing(load):
    found = judged(made=MADE.format(function="twice"), main=f"from made import *\n{load}")
    assert not found["main"].remarks


LOSS = "def loss(y, p):\n  return tf.reduce_mean(tf.boolean_mask(p - y, y > 0))\n"
FITS = "m = keras.Sequential()\nm.compile('sgd', {})\nm.fit(1, 2)\n"
IN_STEPS = {
    "a loss": (LOSS + FITS.format("loss"), "tf.where(mask, x, 0.0)"),
    "what a loss calls": (
        f"def chosen(x):\n  return tf.unique(x)\n{LOSS.replace('boolean_mask', 'abs')}"
        "def other(y, p):\n  return loss(y, chosen(p))\n" + FITS.format("other"),
        "jax.numpy.unique",
    ),
    "a loss that a function makes, in a loop of its own": (
        """
        def made(n):
          def loss(y, p):
            return tf.map_fn(lambda x: tf.boolean_mask(x[0], x[1] > n), (y, p), tf.float32)
          return loss
        losses = [made(n) for n in range(3)]
        m = keras.Sequential()
        m.compile(loss=losses)
        m.fit(1)
        """,
        "divide a sum",
    ),
    "an eager loss, whose shape Keras finds by a trace": (
        LOSS + FITS.format("loss, run_eagerly=True"),
        "tf.where(mask",
    ),
    "a metric": (LOSS + FITS.format("'mse', metrics=[loss]"), "the mask as weights"),
    "a layer": (
        "class L(keras.layers.Layer):\n  def call(self, x):\n"
        "    mask = x > 0\n    return tf.where(mask)\n" + FITS.format("'mse'"),
        "count_nonzero",
    ),
    "a step": (
        """
        class M(keras.Model):
          def chosen(self, x):
            return tf.compat.v1.boolean_mask(x, x)
          def train_step(self, data):
            self.chosen(data)
        with tf.distribute.MirroredStrategy().scope():
          m = M()
        m.fit(1)
        """,
        "tf.where(mask, x, 0.0)",
    ),
    "a Lambda": (
        "keras.layers.Lambda(lambda x: tf.sequence_mask(x))\n" + FITS.format("'mse'"),
        "Pass `maxlen`",
    ),
    "a replica": (
        """
        s = tf.distribute.MirroredStrategy()
        @tf.function
        def step(x):
          return tf.math.segment_sum(x, x)
        s.run(step, args=(tf.range(3),))
        """,
        "unsorted_segment_sum",
    ),
    "an object that is called": (
        "class F:\n  def __call__(self, y, p):\n    return tf.dynamic_partition(y, p, 2)\n"
        + FITS.format("loss=F()"),
        "partitions == n",
    ),
}


@pytest.mark.parametrize("case", IN_STEPS)
def test_what_a_compiled_step_cannot_compute_is_named(case):
    text, wanted = IN_STEPS[case]
    (found,) = remarks(text)
    assert wanted in found
    assert "shape" in found


@pytest.mark.parametrize(
    "text",
    [
        LOSS + "loss(1, 2)",
        LOSS + FITS.format("'mse'"),  # another loss
        LOSS + FITS.format("loss").replace("fit", "summary").replace("1, 2", ""),
        LOSS + "tf.function(loss)(1, 2)",  # it runs as plain Python, and so does this step:
        LOSS
        + "class M(keras.Model):\n  def train_step(self, x):\n    loss(x, x)\nm = M()\nm.fit(1)",
        LOSS + "tf.data.Dataset.range(3).map(loss)\n" + FITS.format("'mse'"),
        LOSS.replace("tf.boolean_mask(p - y, y > 0)", "tf.where(y > 0, p, y)")
        + FITS.format("loss"),
        LOSS.replace("tf.boolean_mask(p - y, y > 0)", "tf.sequence_mask(y, maxlen=3)")
        + FITS.format("loss"),
        LOSS.replace("tf.boolean_mask(p - y, y > 0)", "tf.unique(np.array([1, 2])).y")
        + FITS.format("loss"),
        LOSS
        + "def host(y, p):\n  return tf.numpy_function(loss, [y, p], tf.float32)\n"
        + FITS.format("host"),
    ],
)
def test_outside_of_a_step_it_is_not(text):
    assert not remarks(text)


def test_the_list_of_steps_has_names_and_arguments_that_are_there():
    assert list(STEPS) == sorted(STEPS)
    for key in STEPS:
        name, _, argument = key.rstrip(")").partition("(")
        parameters = inspect.signature(kinds.find(name)).parameters
        assert not argument or argument in parameters
