"""Modules of TensorFlow and Keras 2 for their own tests, made of the names that Replicax has.

A test of TensorFlow imports TensorFlow's own modules. On the side of Replicax a module here has the
names that TensorFlow exports (`names`, which the run in TensorFlow finds out) and those of
`STANDING_IN`. Any other name is TensorFlow's own: a case that uses one does not count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.abc
import importlib.util
import inspect
import itertools
import sys
import types
import unittest
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# Modules whose text belongs to the tests.
TEST_LIBRARIES = ("strategy_test_lib", "single_loss_example")
TESTS = ("tensorflow.python.eager.test", "tensorflow.python.platform.test")
PLACES = (
    *("", "math.", "nn.", "linalg.", "data.", "distribute.", "sparse.", "random.", "config."),
    *("train.", "saved_model.", "data.experimental.", "distribute.experimental."),
)
KERAS_PLACES = (
    *("", "layers.", "optimizers.", "metrics.", "losses.", "utils.", "callbacks.", "models."),
    *("initializers.", "mixed_precision.", "backend.", "experimental.", "regularizers."),
)
STRATEGIES = {
    "strategies_minus_default_minus_tpu": "one_device mirrored_one mirrored workers",
    "strategies_minus_tpu": "default one_device mirrored_one mirrored central",
    "strategies_minus_default_and_tpu": "one_device mirrored_one mirrored",
    "all_strategies_minus_default": "one_device mirrored_one mirrored",
    "all_strategies": "default one_device mirrored_one mirrored central",
    "multiworker_strategies": "workers",
    "parameter_server_strategies_single_worker": "servers",
    "parameter_server_strategies_multi_worker": "servers",
}


class Internal(Exception):
    """A case uses a name that TensorFlow does not export."""


class Absent:
    """Stands for such a name until a case uses it."""

    in_case = False  # before, modules are imported and decorators run

    def __init__(self, name: str) -> None:
        self.name = name

    def __mro_entries__(self, bases: tuple[type, ...]) -> tuple[type, ...]:
        return ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if len(arguments) == 1 and not named and inspect.isroutine(arguments[0]):
            return arguments[0]  # a decorator
        if not self.in_case:
            return Absent(f"{self.name}()")
        raise Internal(self.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.name}.{name}")

    def __instancecheck__(self, value: object) -> bool:
        raise Internal(self.name)

    __bool__ = __iter__ = lambda self: Absent.__instancecheck__(self, None)


class Lacking(Absent):
    """A name that TensorFlow exports and Replicax lacks: a case that calls it fails."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise AttributeError(f"tf.{self.name}")


class Never:
    """A class of which nothing is."""


# The cases of a test -----------------------------------------------------------------------------


class Named:
    """A strategy that is made when a case begins."""

    replicas = 0  # of the last one

    def __init__(self, tf: Any, kind: str) -> None:
        self.tf, self.kind = tf, kind

    @property
    def strategy(self) -> Any:
        of = self.tf.distribute
        make: dict[str, Callable[[], Any]] = {
            "default": of.get_strategy,
            "one_device": lambda: of.OneDeviceStrategy("/cpu:0"),
            "mirrored_one": lambda: of.MirroredStrategy(["/cpu:0"]),
            "mirrored": lambda: of.MirroredStrategy(["/cpu:0", "/cpu:1"]),
            "central": lambda: of.experimental.CentralStorageStrategy(
                ["/cpu:0", "/cpu:1"], "/cpu:0"
            ),
            "workers": of.MultiWorkerMirroredStrategy,
        }
        if self.kind not in make:
            raise unittest.SkipTest(f"no {self.kind} here")
        made = make[self.kind]()
        Named.replicas = made.num_replicas_in_sync
        return made


class NamedObject:
    """A function that is an option, with a name."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self._obj = name, value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._obj(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._obj, name)


def combine(**options: Any) -> list[dict[str, Any]]:
    """Every choice of the options; none in graph mode."""
    values = [
        [(key, one) for one in (value if isinstance(value, list) else [value])]
        for key, value in sorted(options.items())
    ]
    return [one for one in map(dict, itertools.product(*values)) if one.get("mode") != "graph"]


def times(*combined: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every choice of one of each list."""
    chains = (
        itertools.chain(*(one.items() for one in many)) for many in itertools.product(*combined)
    )
    return list(map(dict, chains))


def generate(combined: list[dict[str, Any]], test_combinations: Any = ()) -> Any:
    """A decorator that makes a case for each choice, of a method or of those of a class."""

    def cases(test: Any, name: str) -> dict[str, Any]:
        asked, found, seen = inspect.getfullargspec(test).args, {}, []
        for number, chosen in enumerate(combined):
            given = {key: value for key, value in chosen.items() if key in asked}
            if given in seen:
                continue
            seen.append(given)

            def case(self: Any, given: dict[str, Any] = given) -> None:
                made = given.items()
                test(self, **{k: v.strategy if isinstance(v, Named) else v for k, v in made})

            kinds = [value.kind for value in given.values() if isinstance(value, Named)]
            case.__name__ = f"{name}__{'_'.join([*kinds, str(number)])}"
            found[case.__name__] = case
        return found

    def decorator(what: Any) -> Any:
        if not isinstance(what, type):
            sys._getframe(1).f_locals.update(cases(what, what.__name__))
            return None
        for name, test in list(vars(what).items()):
            if name.startswith("test") and inspect.isfunction(test):
                delattr(what, name)
                for key, case in cases(test, name).items():
                    setattr(what, key, case)
        return what

    return decorator


def combinations(tf: Any) -> types.ModuleType:
    """`combinations`, with the strategies by name."""

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in STRATEGIES:
                return [Named(tf, kind) for kind in STRATEGIES[name].split()]
            kinds = ("default", "one_device", "central", "multi_worker", "parameter_server")
            kind = next((kind for kind in kinds if name.startswith(kind)), "mirrored")
            if name.startswith("mirrored_strategy_with_one"):
                kind = "mirrored_one"
            said = {"multi_worker": "workers", "parameter_server": "servers"}
            one = Named(tf, said.get(kind, kind))
            return [one] if name.endswith("strategies") else one

    module = Module("combinations")
    module.combine, module.times, module.generate = combine, times, generate
    module.concat = lambda *many: list(itertools.chain(*many))
    module.NamedObject = NamedObject
    module.NamedDistribution = lambda *a, **k: Named(tf, "mirrored")
    module.parameter_server_strategy_fn = module.NamedDistribution
    module.in_main_process = lambda: True
    module.env = lambda: types.SimpleNamespace(tf_data_service_dispatcher=None)
    module.tf_function = lambda function, **k: tf.function(function, **k)
    module.no_tf_function = lambda function, **k: function
    return module


def internal(tf: Any) -> Any:
    """`tf.__internal__`, as far as tests use it."""
    runner = types.SimpleNamespace(test_main=lambda *a, **k: None)
    made = combinations(tf)
    return types.SimpleNamespace(
        distribute=types.SimpleNamespace(combinations=made, multi_process_runner=runner),
        test=types.SimpleNamespace(combinations=made),
        tf2=types.SimpleNamespace(enabled=lambda: True),
    )


def test_case(tf: Any) -> type:
    """`tf.test.TestCase`; the words of an error are not compared."""

    class Case(tf.test.TestCase):
        def assertRaisesRegex(self, error: Any, pattern: Any, *arguments: Any, **named: Any) -> Any:
            return self.assertRaises(error, *arguments, **named)

        assertRaisesRegexp = assertRaisesRegex

        @contextlib.contextmanager
        def test_session(self) -> Iterator[Any]:
            yield self

    return Case


# Modules -----------------------------------------------------------------------------------------


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module of TensorFlow and Keras 2.

    `names` are what TensorFlow exports of its modules, `files` the folder with the tests, and
    `modules` the modules of Keras 2 that exist.
    """

    def __init__(self, tf: Any, names: dict[str, dict[str, str]], files: Path, modules: set[str]):
        self.tf, self.names, self.files, self.modules = tf, names, files, modules
        self.case = test_case(tf)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] not in ("tensorflow", "tf_keras"):
            return None
        file = self.files / (name.replace(".", "/") + ".py")
        is_of_tests = name.startswith("tf_keras.distribute.") or name.endswith(TEST_LIBRARIES)
        if is_of_tests and file.exists():
            return importlib.util.spec_from_file_location(name, file)
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        name, last = spec.name, spec.name.rpartition(".")[2]
        if name in ("tensorflow", "tensorflow.compat.v2"):
            return self.tf
        if name == "tensorflow.compat.v1":
            return self.tf.compat.v1
        if last in ("combinations", "strategy_combinations", "test_combinations"):
            return combinations(self.tf)
        module = StandIn(name, self)
        if name in TESTS:
            module.TestCase, module.main, module.mock = self.case, lambda *a: None, unittest.mock
        elif last == "test_util" and "distribute" in name:
            module.gather, module.create_per_replica = self.gather, self.create_per_replica
            module.main = lambda *a, **k: None
        elif last in ("test_util", "test_utils"):
            return Decorators(name)
        elif last == "context":
            module.executing_eagerly, module.num_gpus = self.tf.executing_eagerly, lambda: 0
        elif last == "tf2":
            module.enabled = lambda: True
        return module

    def exec_module(self, module: Any) -> None:
        pass

    def gather(self, strategy: Any, value: Any) -> Any:
        results = strategy.experimental_local_results
        return self.tf.nest.map_structure(lambda one: self.tf.stack(results(one)), value)

    def create_per_replica(self, strategy: Any, values: Any) -> Any:
        def of(context: Any) -> Any:
            return self.tf.constant(values[context.replica_id_in_sync_group])

        return strategy.experimental_distribute_values_from_function(of)

    def find(self, name: str) -> Any:
        """A public name of Replicax; None if there is none."""
        value = self.tf
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    def standing_in(self, name: str) -> Any:
        """What stands for names of TensorFlow's own that many cases use."""
        tf = self.tf
        if name in ("values.PerReplica", "values.DistributedValues"):
            return per_replica_class(tf)
        if name == "distribute_utils.select_replica":
            results = lambda one: tf.distribute.get_strategy().experimental_local_results(one)  # noqa: E731
            return lambda at, nest: tf.nest.map_structure(lambda one: results(one)[at], nest)
        return {
            "values.DistributedVariable": tf.Variable,
            "values.MirroredVariable": tf.Variable,
            "variables.global_variables_initializer": lambda: None,
            "v2_compat.enable_v2_behavior": lambda: None,
            "backend.is_tpu_strategy": lambda strategy: False,
            "mirrored_strategy.MirroredStrategyV1": Never,
            "tpu_strategy.TPUExtended": Never,
            "tpu_strategy.TPUStrategyV1": Never,
            "tpu_strategy.TPUStrategy": Never,
            "collective_all_reduce_strategy.CollectiveAllReduceExtended": Never,
            "collective_all_reduce_strategy.CollectiveAllReduceStrategyV1": Never,
            "parameter_server_strategy.ParameterServerStrategyExtended": Never,
            "ps_values.AggregatingVariable": Never,
        }.get(name)


def per_replica_class(tf: Any) -> type:
    import jax

    from replicax._core.values import PerReplica

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass
    class Slices:
        """Sparse updates for each replica, which become those of one in `run`."""

        values: Any
        indices: Any

    class Of(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, PerReplica)

        def __call__(cls, values: Any) -> Any:
            if 2 < Named.replicas:  # where TensorFlow has one or two: of all CPUs of a worker
                values = [values[min(i, len(values) - 1)] for i in range(Named.replicas)]
            if isinstance(values[0], tf.IndexedSlices):
                parts = ([one.values for one in values], [one.indices for one in values])
                return Slices(*map(cls, parts))
            return PerReplica(parts=tuple(map(tf.convert_to_tensor, values)))

    return Of("PerReplica", (), {})


class StandIn(types.ModuleType):
    """A module with the names of it that are exported."""

    __path__: list[str] = []

    def __init__(self, name: str, of: StandIns) -> None:
        super().__init__(name)
        self.of = of

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        whole, of = f"{self.__name__}.{name}", self.of
        if whole in of.names or whole in of.modules:
            return importlib.import_module(whole)
        if (found := of.standing_in(".".join(whole.split(".")[-2:]))) is not None:
            return found
        if self.__name__.startswith("tf_keras"):
            own = self.__name__.removeprefix("tf_keras").removeprefix(".")
            places = [f"keras.{place}" for place in ([f"{own}."] if own else []) + [*KERAS_PLACES]]
            return next(filter(None.__ne__, (of.find(p + name) for p in places)), Absent(whole))
        exported = of.names.get(self.__name__, {}).get(name, "")
        # An old name, or one of an operation, is looked up by its last word.
        is_plain = not exported and self.__name__.startswith("tensorflow.python.ops")
        if exported.startswith("compat.v1.") or is_plain:
            plain = exported.removeprefix("compat.v1.") or name.removesuffix("_v2")
            exported = next((p + plain for p in PLACES if of.find(p + plain) is not None), "")
        if not exported:
            return Absent(whole)
        found = of.find(exported)
        return Lacking(exported) if found is None else found


class Decorators(types.ModuleType):
    """A module of decorators, which leave a case as it is."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_test_data":
            return test_data
        return lambda *a, **k: a[0] if len(a) == 1 and callable(a[0]) else (lambda case: case)


def test_data(
    train_samples: int, test_samples: int, input_shape: Any, num_classes: int, random_seed: Any
) -> Any:
    """Points around a centre for each class: those to train with, and those to test with."""
    import numpy as np

    draw, count = np.random.default_rng(random_seed), train_samples + test_samples
    y = draw.integers(0, num_classes, count)
    centres = 2 * num_classes * draw.random((num_classes, *input_shape))
    x = (centres[y] + draw.normal(size=(count, *input_shape))).astype("float32")
    at = slice(train_samples), slice(train_samples, None)
    return tuple((x[rows], y[rows]) for rows in at)
