"""What `import replicax.tf as tf` costs, and that each name it lists is there."""

import importlib
import pickle
from collections import Counter
from types import ModuleType

import cloudpickle
import pytest

import replicax.tf as tf
from replicax.tf._absent import ABSENT
from replicax.tf._names import NAMESPACES
from replicax.tf._namespace import children

from helpers import run_python

IMPORT = """
import sys, time
start = time.process_time()
import replicax.tf as tf
from replicax.tf._names import NAMESPACES
from replicax.tf._namespace import children
from replicax.tf import distribute, keras
keras.layers
seconds = time.process_time() - start
heavy = {"jax", "jaxlib", "keras", "tensorflow", "numpy"} & set(sys.modules)
print(seconds, *sorted(heavy))
"""

EVERYTHING = """
import sys
sys.modules["tensorflow"] = None  # importing it is an error
import replicax.tf as tf
from replicax.tf._names import NAMESPACES
from replicax.tf._namespace import children
for name in dir(tf):
    getattr(tf, name)
import jax
jax.config.update("jax_num_cpu_devices", 3)  # an error as soon as JAX has counted its devices
print(len(jax.devices("cpu")))
"""


def printed(program):
    return run_python(program).split()


def test_the_import_is_quick_and_loads_neither_jax_nor_keras():
    seconds, *heavy = min((printed(IMPORT) for _ in range(3)), key=lambda found: float(found[0]))
    assert float(seconds) < 2.0  # of CPU: test machines are not idle
    assert not heavy


def test_no_name_touches_a_backend_or_needs_tensorflow():
    assert printed(EVERYTHING) == ["3"]


NUMPY = """
{}
import jax.numpy as jnp
print(jnp.ones(2).sum().numpy())
"""


@pytest.mark.parametrize(
    "loading",
    [
        "from replicax.tf.distribute import MirroredStrategy",
        "from replicax.tf.keras import layers; layers.Dense",
    ],
)
def test_arrays_have_numpy_whatever_name_was_asked_for(loading):
    assert printed(NUMPY.format(loading)) == ["2.0"]


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_no_name_has_two_homes(namespace):
    tables = [source for source in NAMESPACES[namespace][1:] if not isinstance(source, str)]
    homes = Counter([*children(namespace), *(name for table in tables for name in table)])
    assert [name for name, count in homes.items() if count > 1] == []


def modules():
    return [importlib.import_module(f"replicax.{name}") for name in NAMESPACES]


def test_every_name_that_is_listed_is_there():
    for module in modules():
        for name in dir(module):
            getattr(module, name)


def test_namespaces_are_sent_by_their_names():
    for module in modules():
        assert pickle.loads(cloudpickle.dumps(module)) is module
    assert pickle.loads(cloudpickle.dumps(lambda: tf.keras.layers))() is tf.keras.layers


def test_namespaces_are_reached_by_attributes():
    for module in modules():
        found = tf
        for part in module.__name__.split(".")[2:]:
            found = getattr(found, part)
        assert isinstance(found, ModuleType)


# Without methods and arguments, which `replicax migrate` reads.
IN_NAMESPACES = [name for name in ABSENT if name.rpartition(".")[0] in NAMESPACES]


@pytest.mark.parametrize("name", IN_NAMESPACES)
def test_a_name_that_is_not_there_says_what_to_use(name):
    inner = f"{name}.nothing" if name in NAMESPACES else name
    found = tf
    with pytest.raises(AttributeError) as raised:
        for part in inner.split(".")[1:]:
            found = getattr(found, part)
    assert ABSENT[name] in str(raised.value)


@pytest.mark.parametrize("namespace", ["tf", "tf.config", "tf.distribute", "tf.errors"])
def test_a_name_that_nobody_has_is_named(namespace):
    module = importlib.import_module(f"replicax.{namespace}")
    with pytest.raises(AttributeError, match=f"{namespace}.NoSuchName"):
        _ = module.NoSuchName


@pytest.mark.parametrize(("namespace", "is_for_arrays"), [("tf.math", True), ("tf.io", False)])
def test_only_functions_of_arrays_are_to_be_looked_for_in_jax(namespace, is_for_arrays):
    module = importlib.import_module(f"replicax.{namespace}")
    with pytest.raises(AttributeError) as raised:
        _ = module.NoSuchName
    assert ("jax.numpy" in str(raised.value)) is is_for_arrays
