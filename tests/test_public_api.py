"""The names of `replicax`: each is there and explained, and importing them costs nothing."""

import ast
import importlib
import operator
import re
from pathlib import Path

import pytest

import replicax as rx
from replicax.launch._ports import free_ports

from helpers import run_python

SOURCE = Path(rx.__file__)
TREE = ast.parse(SOURCE.read_text())

TOUCH_EVERY_NAME = "import replicax as rx; [getattr(rx, name) for name in dir(rx)]; "


def assigned(name):
    """The literal that `name` is assigned in the source."""
    (found,) = (
        node.value
        for node in TREE.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    return ast.literal_eval(found)


def names_for_type_checkers():
    """The names that the TYPE_CHECKING block imports, with their modules."""
    (block,) = (
        node
        for node in TREE.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    return {
        alias.asname: ".".join(filter(None, [getattr(node, "module", None), alias.name]))
        for node in block.body
        for alias in node.names
    }


@pytest.mark.parametrize("name", sorted(set(dir(rx)) - {"__version__"}))
def test_every_name_is_there_and_explained(name):
    assert getattr(rx, name).__doc__


def test_type_checkers_see_the_names_that_there_are():
    homes = {name: f"{m}.{name}" for m, names in assigned("_HOMES").items() for name in names}
    assert names_for_type_checkers() == homes | assigned("_MODULES")


def test_every_name_of_the_list_of_homes_is_defined_there():
    for module, names in assigned("_HOMES").items():
        for name in names:
            assert getattr(importlib.import_module(module), name) is getattr(rx, name)


def test_an_unknown_name_is_explained():
    with pytest.raises(AttributeError, match="'Mirr'"):
        _ = rx.Mirr


def test_the_experimental_names():
    assert rx.experimental.CentralStorageStrategy is rx.CentralStorageStrategy
    assert rx.experimental.ValueContext().num_replicas_in_sync == 1


def test_there_is_a_version():
    assert rx.__version__.count(".") == 2


def test_importing_is_quick_and_imports_neither_jax_nor_keras():
    program = """
        import sys, time
        start = time.process_time()
        import replicax
        elapsed = time.process_time() - start
        heavy = {"jax", "jaxlib", "keras", "numpy", "ray", "grain", "rich", "matplotlib"}
        print(elapsed, *filter(sys.modules.get, heavy))
    """
    elapsed, *heavy = run_python(program).split()
    print(f"import replicax: {float(elapsed):.3f} s")  # noqa: T201
    assert heavy == []
    assert float(elapsed) < 2.0  # of CPU: test machines are not idle


def test_a_program_that_trains_on_arrays_imports_neither_pipelines_nor_servers():
    program = """
        import sys
        import keras
        import numpy as np
        import replicax as rx
        with rx.MirroredStrategy().scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
        assert model.optimizer.iterations == 1
        print(*{"replicax.data", "replicax._ps"} & set(sys.modules))
    """
    assert run_python(program) == "\n"


def test_importing_chooses_the_jax_backend_and_leaves_a_chosen_one_alone():
    program = "import os, replicax; print(os.environ['KERAS_BACKEND'])"
    assert run_python(f"import os; del os.environ['KERAS_BACKEND']; {program}") == "jax\n"
    assert run_python(program, KERAS_BACKEND="torch") == "torch\n"


def test_no_name_starts_a_backend():
    # Joining a cluster must be possible until the first array is made.
    with free_ports(1) as (port,):
        address = f"127.0.0.1:{port}"
        join = (
            f"import jax; jax.distributed.initialize({address!r}, num_processes=1, process_id=0); "
            "print(len(jax.local_devices()))"
        )
        assert run_python(TOUCH_EVERY_NAME + join, JAX_NUM_CPU_DEVICES="3") == "3\n"


def test_another_backend_is_refused_before_keras_is_imported():
    program = """
        import replicax as rx
        try:
            rx.MirroredStrategy
        except rx.errors.WrongBackend as error:
            print(error)
    """
    assert "KERAS_BACKEND=jax" in run_python(program, KERAS_BACKEND="torch")


def test_another_backend_is_refused_at_the_first_use():
    program = """
        import keras
        import replicax as rx

        for use in (lambda: rx.get_strategy(), lambda: rx.function(print)):
            try:
                use()
            except rx.errors.WrongBackend as error:
                print(error)
    """
    said = run_python(program, KERAS_BACKEND="numpy")
    assert said.count("'numpy' backend") == 2
    assert said.count("`import replicax` before `import keras`") == 2


PUBLIC_API = (Path(__file__).parent / "guards/public_api.txt").read_text().splitlines()

# Functions that take any keyword, called so that a misspelled one is their only fault.
REFUSING = {
    "layers.DynamicTable": (2,),
    "layers.HashedCrossing": (3,),
    "layers.Hashing": (3,),
    "layers.IntegerLookup": (),
    "layers.ShardedEmbedding": (3, 2),
    "layers.StringLookup": (),
    "layers.TextVectorization": (),
    "layers.VocabularyEmbedding": (3, 2),
    "tf.group": (),
    "tf.io.decode_and_crop_jpeg": (b"", (0, 0, 1, 1)),
    "tf.keras.layers.experimental.SyncBatchNormalization": (),
    "tf.train.Checkpoint": (),
    "train.Checkpoint": (),
}
# Their keywords are for a function that the caller names, or for the caller alone.
PASSING_ON = [
    "experimental.PreemptionCheckpointHandler.run",
    "experimental.PreemptionCheckpointHandler.save_checkpoint_if_preempted",
    "tf.DeviceSpec.replace",
    "tf.compat.v1.ConfigProto",
    "tf.datasets.builder",
    "tf.keras.models.save_model",
    "tf.profiler.experimental.Trace",
    "tf.ragged.map_flat_values",
    "tf.sparse.map_values",
    "tf.test.TestCase",
    "tf.types.experimental.Callable.get_concrete_function",
    "tf.types.experimental.Callable.warm_up",
    "tf.types.experimental.SupportsTracingProtocol",
    "tf.types.experimental.distributed.PerReplica.numpy",
]


def test_every_function_that_takes_any_keyword_is_in_one_of_these_lists():
    takes_any = re.compile(r"replicax\.([\w.]+)\(.*\*\*\w")
    found = {match[1] for match in map(takes_any.match, PUBLIC_API) if match}
    assert found == {*REFUSING, *PASSING_ON}


@pytest.mark.parametrize("name", REFUSING)
def test_a_misspelled_keyword_is_refused(name):
    function = operator.attrgetter(name)(importlib.import_module("replicax"))
    with pytest.raises((TypeError, ValueError), match="nonsense_argument"):
        function(*REFUSING[name], nonsense_argument=1)
