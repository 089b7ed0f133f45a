"""Two workers on one machine: training, all-reduces, and what agreeing on batches costs.

A small CNN is trained by `fit` and by a custom loop: by Replicax with two workers and with one, by
JAX written by hand in two processes, and by TensorFlow's MultiWorkerMirroredStrategy with two
workers and legacy Keras. The workers of all sides live as long as the benchmark and take turns, so
that one side computes at a time and what else the machine does meets all of them. All start from
the same weights and must end with the same.

    python benchmarks/multi_worker.py --tensorflow /path/to/python/with/tensorflow
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from harness.output import end_cleanly_on_signals, say, spread
from harness.processes import ADDRESS, Processes, SideFailed, free_addresses

SHAPE = (32, 32, 3)  # of CIFAR-10's images
CLASSES = 10
LEARNING_RATE = 0.02
WORKERS = 2
KILOBYTE, MEGABYTE = 2**10, 2**20
SIZES = (4 * KILOBYTE, 64 * KILOBYTE, MEGABYTE, 8 * MEGABYTE, 64 * MEGABYTE)
TENSORS = 50  # a model's gradients
TENSOR_SIZES = (4 * KILOBYTE, 64 * KILOBYTE)
REDUCED_A_ROUND = 64 * MEGABYTE  # in at most so many calls:
CALLS = 40
SMALL_STEPS = 100
TOLERANCE = 1e-4

FIT, LOOP = "fit", "custom loop"
OURS, ALONE, BY_HAND, TENSORFLOW = (
    "Replicax, 2 workers",
    "Replicax, 1 worker",
    "JAX by hand, 2 processes",
    "TensorFlow, 2 workers",
)
UNPACKED = "{}, a pack for each tensor"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    parser.add_argument("--steps", type=int, default=20, help="of training, a turn (default 20)")
    parser.add_argument("--batch-size", type=int, default=128, help="of all workers (default 128)")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument(
        "--tensorflow", metavar="PYTHON", help="has TensorFlow and tf_keras; without it, left out"
    )
    parser.add_argument(
        "--also",
        metavar="'NAME=VALUE …'",
        action="append",
        default=[],
        help="one more side: Replicax' two workers with this in their environment; repeatable",
    )
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # as a worker of a `Group`
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.steps, options.batch_size = 1, 2, 16
    return options


@dataclass(frozen=True)
class Plan:
    """What a worker is told at its start. All of them make the same data and weights.

    Args:
        side: Which of the sides it belongs to.
        label: What the side is called.
        steps: Training steps a turn.
        batch_size: Rows of a step, over all workers.
        quick: Whether sizes do not matter.
        only: Cases whose names hold this.
    """

    side: str
    label: str
    steps: int
    batch_size: int
    quick: bool
    only: str

    @cached_property
    def images(self) -> np.ndarray:
        shape = (self.steps * self.batch_size, *SHAPE)
        return np.random.default_rng(0).random(shape, np.float32) - np.float32(0.5)

    @cached_property
    def labels(self) -> np.ndarray:
        rows = self.steps * self.batch_size
        return np.random.default_rng(1).integers(0, CLASSES, rows).astype("int32")

    @cached_property
    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        shape = (self.steps, self.batch_size)
        images, labels = self.images.reshape(*shape, *SHAPE), self.labels.reshape(shape)
        return list(zip(images, labels, strict=True))

    @cached_property
    def small(self) -> tuple[np.ndarray, np.ndarray]:
        """A batch that takes no time."""
        rows = np.random.default_rng(2).random((self.batch_size, 32), np.float32)
        return rows, rows.sum(axis=1, keepdims=True)

    @property
    def small_steps(self) -> int:
        return 5 if self.quick else SMALL_STEPS

    @cached_property
    def weights(self) -> list[np.ndarray]:
        """Of the CNN: two convolutions, each halved by a max-pool, and two dense layers."""
        random, found = np.random.default_rng(3), []
        for shape in (3, 3, 3, 32), (3, 3, 32, 64), (8 * 8 * 64, 64), (64, CLASSES):
            scale = (2 / np.prod(shape[:-1])) ** 0.5
            found += [(scale * random.normal(size=shape)).astype("float32")]
            found += [np.zeros(shape[-1], np.float32)]
        return found

    @property
    def reduced(self) -> dict[str, tuple[int, int, int]]:
        """Case → bytes, tensors, calls a turn."""
        found = {f"all-reduce of {amount(size)}": (size, 1) for size in SIZES}
        for size in TENSOR_SIZES:
            found[f"all-reduce of {TENSORS} × {amount(size)}"] = (size, TENSORS)
        return {
            name: (size, count, 2 if self.quick else calls_for(size * count))
            for name, (size, count) in found.items()
            if self.only in name and not (self.quick and size > 64 * KILOBYTE)
        }


def amount(size: int) -> str:
    return f"{size // MEGABYTE} MB" if size >= MEGABYTE else f"{size // KILOBYTE} KB"


def calls_for(size: int) -> int:
    return max(2, min(CALLS, REDUCED_A_ROUND // size))


@dataclass(frozen=True)
class Work:
    """What a side does at its turn.

    Args:
        run: What is timed.
        reset: Brings everything to where it began.
        result: What must be the same on all sides afterwards.
        units: By how many the time is divided: steps or calls.
        amount: How much each of them does: images or bytes.
    """

    run: Callable[[], object]
    reset: Callable[[], object]
    result: Callable[[], Any]
    units: int
    amount: float = 0


Works = dict[tuple[str, str], Work]  # by case and label


def flat(arrays: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.asarray(array).ravel() for array in arrays])


def ends(arrays: Iterable[np.ndarray]) -> np.ndarray:
    return flat(array[[0, -1]] for array in arrays)


# The sides. Each imports what it needs, in processes of its own.


def keras_model(keras: Any, plan: Plan) -> Any:
    """The CNN, in Keras 3 or in legacy Keras."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(CLASSES),
        ]
    )
    model.set_weights(plan.weights)
    return model


def training(plan: Plan, epoch: Callable[[], object], model: Any) -> Work:
    return Work(
        epoch,
        reset=lambda: model.set_weights(plan.weights),
        result=lambda: flat(model.get_weights()),
        units=plan.steps,
        amount=plan.batch_size,
    )


def keras_fit(keras: Any, strategy: Any, plan: Plan) -> Work:
    """An epoch of `fit`."""
    with strategy.scope():
        model = keras_model(keras, plan)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(LEARNING_RATE), loss)
    how = {"batch_size": plan.batch_size, "shuffle": False, "verbose": 0}
    return training(plan, lambda: model.fit(plan.images, plan.labels, **how), model)


class Replicax:
    """`fit`, `strategy.run` and a distributed data set, with as many workers as are started."""

    def __init__(self, plan: Plan) -> None:
        import keras

        import replicax as rx

        self._plan, self._rx, self._keras = plan, rx, keras
        self._strategy = rx.MultiWorkerMirroredStrategy()

    def works(self) -> Works:
        label = self._plan.label
        found: Works = {
            (FIT, label): keras_fit(self._keras, self._strategy, self._plan),
            (LOOP, label): self._loop(),
        }
        if self._strategy.num_replicas_in_sync > 1:
            found |= self._reductions(self._strategy, label)
        if label == OURS:  # a strategy that packs nothing
            single = self._rx.experimental.CommunicationOptions(bytes_per_pack=1)
            strategy = self._rx.MultiWorkerMirroredStrategy(communication_options=single)
            unpacked = self._reductions(strategy, UNPACKED.format("Replicax"))
            found |= {key: work for key, work in unpacked.items() if str(TENSORS) in key[0]}
        return found | self._small_steps()

    def _step(self, model: Any, optimizer: Any, loss: Any) -> Callable[..., Any]:
        rx = self._rx

        def step(x: Any, y: Any) -> Any:
            def loss_fn() -> Any:
                return loss(y, model(x, training=True))  # divided by the replicas already

            value, gradients = rx.value_and_grad(loss_fn, model)()
            optimizer.apply(gradients, model.trainable_variables)
            return rx.get_replica_context().all_reduce("SUM", value)

        return step

    def _loop(self) -> Work:
        strategy, keras, plan = self._strategy, self._keras, self._plan
        with strategy.scope():
            model, optimizer = keras_model(self._keras, plan), keras.optimizers.SGD(LEARNING_RATE)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        step = self._step(model, optimizer, loss)
        dataset = strategy.experimental_distribute_dataset(plan.batches)

        def epoch() -> float:
            value: Any = None
            for batch in dataset:
                value = strategy.run(step, args=batch)
            return float(value)

        return training(plan, epoch, model)

    def _small_steps(self) -> Works:
        """The same batch from a data set, about which the workers agree, and by itself."""
        strategy, keras, plan = self._strategy, self._keras, self._plan
        with strategy.scope():
            model = keras.Sequential([keras.Input((32,)), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(1e-3)
        start = model.get_weights()
        start = [np.zeros_like(weight) for weight in start]
        step = self._step(model, optimizer, keras.losses.MeanSquaredError())
        dataset = strategy.experimental_distribute_dataset([plan.small] * plan.small_steps)
        batch = next(iter(strategy.experimental_distribute_dataset([plan.small])))

        def work(batches: Iterable[Any]) -> Work:
            def epoch() -> float:
                value: Any = None
                for one in batches:
                    value = strategy.run(step, args=one)
                return float(value)

            return Work(
                epoch,
                reset=lambda: model.set_weights(start),
                result=lambda: flat(model.get_weights()),
                units=plan.small_steps,
            )

        case = f"small step, {plan.label.removeprefix('Replicax, ')}"
        again = work([batch] * plan.small_steps)
        return {(case, "the same batch again"): again, (case, "a data set"): work(dataset)}

    def _reductions(self, strategy: Any, label: str) -> Works:
        import jax

        rx = self._rx

        def work(size: int, count: int, calls: int) -> Work:
            found: list[Any] = []

            def components(context: Any) -> Any:
                return np.full(size // 4, context.replica_id_in_sync_group + 1, np.float32)

            make = strategy.experimental_distribute_values_from_function
            values = [make(components) for _ in range(count)]

            def reduce(*values: Any) -> Any:
                return rx.get_replica_context().all_reduce("SUM", list(values))

            def run() -> None:
                for _ in range(calls):
                    found[:] = jax.block_until_ready(strategy.run(reduce, args=values))

            def result() -> np.ndarray:
                return ends(np.asarray(strategy.experimental_local_results(v)[0]) for v in found)

            return Work(run, found.clear, result, calls, size * count)

        return {(case, label): work(*how) for case, how in self._plan.reduced.items()}


class ByHand:
    """`shard_map`, donated weights, one packed `psum`; two batches in flight at most."""

    def __init__(self, plan: Plan) -> None:
        import jax

        rank = int(os.environ["BENCHMARK_RANK"])
        jax.distributed.initialize(os.environ["BENCHMARK_ADDRESS"], WORKERS, rank)
        mesh = jax.make_mesh((WORKERS,), ("worker",))
        self._plan, self._mesh, self._rank = plan, mesh, rank
        self._split = jax.NamedSharding(mesh, jax.P("worker"))
        self._whole = jax.NamedSharding(mesh, jax.P())

    def works(self) -> Works:
        training = self._training()
        found: Works = {(FIT, BY_HAND): training, (LOOP, BY_HAND): training}
        for case, how in self._plan.reduced.items():
            found[case, BY_HAND] = self._reduction(*how)
        return found

    def _place(self, array: np.ndarray) -> Any:
        """This process' share of a batch."""
        import jax

        rows = len(array) // WORKERS
        own = array[self._rank * rows : (self._rank + 1) * rows]
        return jax.make_array_from_process_local_data(self._split, own)

    def _mapped(self, fn: Callable[..., Any], shared: bool) -> Any:
        import jax

        split, whole = jax.P("worker"), jax.P()
        specs = (whole, split, split) if shared else (split,)
        return jax.shard_map(fn, mesh=self._mesh, in_specs=specs, out_specs=whole, check_vma=False)

    def _training(self) -> Work:
        import jax

        plan, place = self._plan, self._place

        def step(weights: list, x: Any, y: Any) -> tuple[list, Any]:
            def loss_fn(weights: list) -> Any:
                return cross_entropy(cnn(weights, x), y) / WORKERS

            loss, gradients = jax.value_and_grad(loss_fn)(weights)
            loss, *gradients = summed([loss, *gradients])
            new = [w - LEARNING_RATE * g for w, g in zip(weights, gradients, strict=True)]
            return new, loss

        compiled = jax.jit(self._mapped(step, shared=True), donate_argnums=0)
        state: dict[str, Any] = {}

        def reset() -> None:
            make = jax.make_array_from_process_local_data
            state["weights"] = [make(self._whole, weight) for weight in plan.weights]

        def epoch() -> float:
            loss: Any = None
            for x, y in plan.batches:
                batch = place(x), place(y)
                if loss is not None:
                    loss.block_until_ready()
                state["weights"], loss = compiled(state["weights"], *batch)
            return float(loss)

        reset()
        result = lambda: flat(state["weights"])  # noqa: E731
        return Work(epoch, reset, result, plan.steps, plan.batch_size)

    def _reduction(self, size: int, count: int, calls: int) -> Work:
        import jax

        own = np.full((1, size // 4), self._rank + 1, np.float32)
        make = jax.make_array_from_process_local_data
        values = [make(self._split, own) for _ in range(count)]
        pack = summed if count > 1 else lambda leaves: jax.lax.psum(leaves, "worker")
        compiled = jax.jit(self._mapped(lambda leaves: pack([v[0] for v in leaves]), shared=False))
        found: list[Any] = []

        def run() -> None:
            for _ in range(calls):
                found[:] = jax.block_until_ready(compiled(values))

        return Work(run, found.clear, lambda: ends(map(np.asarray, found)), calls, size * count)


def cnn(weights: Sequence[Any], x: Any) -> Any:
    import jax
    from jax import lax

    def convolved(x: Any, kernel: Any, bias: Any) -> Any:
        layout = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        window = (1, 2, 2, 1)
        return lax.reduce_window(jax.nn.relu(x + bias), -np.inf, lax.max, window, window, "VALID")

    k1, b1, k2, b2, w3, b3, w4, b4 = weights
    x = convolved(convolved(x, k1, b1), k2, b2)
    return jax.nn.relu(x.reshape(len(x), -1) @ w3 + b3) @ w4 + b4


def cross_entropy(logits: Any, labels: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


def summed(leaves: Sequence[Any]) -> list[Any]:
    """All in one buffer, summed over the processes."""
    import jax.numpy as jnp
    from jax import lax

    places = list(itertools.accumulate((leaf.size for leaf in leaves), initial=0))
    buffer = jnp.zeros(places[-1], jnp.float32)
    for leaf, place in zip(leaves, places, strict=False):
        buffer = lax.dynamic_update_slice(buffer, leaf.ravel(), (place,))
    buffer = lax.psum(buffer, "worker")
    return [
        buffer[place : place + leaf.size].reshape(leaf.shape)
        for leaf, place in zip(leaves, places, strict=False)
    ]


class TensorFlow:
    """`MultiWorkerMirroredStrategy` with legacy Keras: `fit` does not work there with Keras 3."""

    def __init__(self, plan: Plan) -> None:
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]
        import tf_keras  # pyright: ignore[reportMissingImports]

        self._plan, self._tf, self._keras = plan, tf, tf_keras
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def works(self) -> Works:
        found: Works = {
            (FIT, TENSORFLOW): keras_fit(self._keras, self._strategy, self._plan),
            (LOOP, TENSORFLOW): self._loop(),
        }
        for case, (size, count, calls) in self._plan.reduced.items():
            found[case, TENSORFLOW] = self._reduction(size, count, calls, 0)
            if count > 1:
                unpacked = self._reduction(size, count, calls, 1)
                found[case, UNPACKED.format("TensorFlow")] = unpacked
        return found

    def _dataset(self) -> Any:
        """Global batches, of which each worker takes its rows of every one."""
        tf, plan = self._tf, self._plan
        settings = tf.data.Options()
        settings.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        rows = tf.data.Dataset.from_tensor_slices((plan.images, plan.labels))
        return rows.batch(plan.batch_size, drop_remainder=True).with_options(settings)

    def _loop(self) -> Work:
        tf, strategy, plan = self._tf, self._strategy, self._plan
        with strategy.scope():
            model, optimizer = (
                keras_model(self._keras, plan),
                self._keras.optimizers.SGD(LEARNING_RATE),
            )
            optimizer.build(model.trainable_variables)
        dataset = strategy.experimental_distribute_dataset(self._dataset())

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                logits = model(x, training=True)
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
                loss = tf.nn.compute_average_loss(losses, global_batch_size=plan.batch_size)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        @tf.function
        def train_step(x: Any, y: Any) -> Any:
            return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

        def epoch() -> float:
            loss: Any = None
            for batch in dataset:
                loss = train_step(*batch)
            return float(loss)

        return training(plan, epoch, model)

    def _reduction(self, size: int, count: int, calls: int, bytes_per_pack: int) -> Work:
        tf, strategy = self._tf, self._strategy
        rank = strategy.cluster_resolver.task_id
        settings = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_per_pack)
        values = [tf.fill([size // 4], float(rank + 1)) for _ in range(count)]
        found: list[Any] = []

        def reduce(*values: Any) -> Any:
            context = tf.distribute.get_replica_context()
            placed = [tf.identity(value) for value in values]  # arguments have no device
            return context.all_reduce("SUM", placed, settings)

        @tf.function
        def compiled(values: Any) -> Any:
            return strategy.run(reduce, args=values)

        def run() -> None:
            for _ in range(calls):
                found[:] = compiled(values)  # which waits

        return Work(
            run, found.clear, lambda: ends(value.numpy() for value in found), calls, size * count
        )


SIDES: Mapping[str, Callable[[Plan], Any]] = {
    "replicax": Replicax,
    "by hand": ByHand,
    "tensorflow": TensorFlow,
}


def serve(plan: Plan) -> None:
    """A worker: works when it is told to, until nobody is there to tell."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        stream = connection.makefile("rw")
        works = SIDES[plan.side](plan).works()
        works = {key: work for key, work in works.items() if plan.only in key[0]}
        facts = [(*key, work.units, work.amount) for key, work in works.items()]
        print(json.dumps(facts), file=stream, flush=True)
        for line in stream:
            order = json.loads(line)
            seconds = turn(works[order["case"], order["label"]], order["look"])
            print(json.dumps(seconds), file=stream, flush=True)


def turn(work: Work, look: str) -> float:
    """The seconds that a unit took; with `look`, the result is written there, too."""
    if look:
        work.reset()
    start = time.perf_counter()
    work.run()
    seconds = time.perf_counter() - start
    if look:
        file = f"{look}-{os.getpid()}.npy"
        np.save(f"{file}.part.npy", work.result())
        os.replace(f"{file}.part.npy", file)
    return seconds / work.units


class Group:
    """The workers of one side, from here: they wait for their turn, which costs nothing.

    Args:
        plan: What they are told.
        commands: What to start, with the environment of each.
        workers: How many of them connect.
    """

    def __init__(
        self, plan: Plan, commands: Sequence[tuple[Sequence[str], dict[str, str]]], workers: int
    ) -> None:
        self._processes = Processes(plan.label, commands, workers)

    def __enter__(self) -> Group:
        self._processes.__enter__()
        try:
            facts, *_ = self._processes.wait()
        except BaseException as error:
            self._processes.__exit__(type(error))
            raise
        self.facts = {(case, label): (units, much) for case, label, units, much in facts}
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        self._processes.__exit__(kind)

    def __call__(self, case: str, label: str, look: str = "") -> float:
        """One turn: the seconds of a unit in the slowest worker."""
        return max(self._processes.tell(case=case, label=label, look=look))


def command(plan: Plan) -> list[str]:
    return [__file__, "--serve", json.dumps(asdict(plan))]


def replicax_group(plan: Plan, workers: int, variables: Sequence[str] = ()) -> Group:
    run = [sys.executable, "-m", "replicax.launch", "run", "--workers", str(workers)]
    run += ["--grace", "2", *(f"--env={variable}" for variable in variables)]
    return Group(plan, [([*run, *command(plan)], {})], workers)


def by_hand_group(plan: Plan) -> Group:
    (address,) = free_addresses(1)
    start = [sys.executable, *command(plan)]
    environments = [
        {"BENCHMARK_ADDRESS": address, "BENCHMARK_RANK": str(rank)} for rank in range(WORKERS)
    ]
    return Group(plan, [(start, environment) for environment in environments], WORKERS)


def tensorflow_group(plan: Plan, python: str) -> Group:
    cluster = {"worker": free_addresses(WORKERS)}
    start, commands = [python, *command(plan)], []
    for rank in range(WORKERS):
        task = {"type": "worker", "index": rank}
        config = json.dumps({"cluster": cluster, "task": task})
        commands.append((start, {"TF_CONFIG": config, "TF_CPP_MIN_LOG_LEVEL": "2"}))
    return Group(plan, commands, WORKERS)


Cases = dict[str, dict[str, Group]]  # by case, then by label


@contextlib.contextmanager
def all_groups(options: argparse.Namespace) -> Iterator[list[Group]]:
    """Start every side; all of them end with the block, however it ends."""
    with contextlib.ExitStack() as stack:

        def plan(side: str, label: str) -> Plan:
            steps, size = options.steps, options.batch_size
            return Plan(side, label, steps, size, options.quick, options.only)

        groups = [
            replicax_group(plan("replicax", OURS), WORKERS),
            replicax_group(plan("replicax", ALONE), 1),
            by_hand_group(plan("by hand", BY_HAND)),
        ]
        for number, variable in enumerate(options.also, 1):
            label = f"Replicax, environment {number}"
            groups.append(replicax_group(plan("replicax", label), WORKERS, shlex.split(variable)))
        if options.tensorflow:
            groups.append(tensorflow_group(plan("tensorflow", TENSORFLOW), options.tensorflow))
        yield [stack.enter_context(group) for group in groups]


def cases_of(groups: Iterable[Group]) -> Cases:
    found: Cases = {}
    for group in groups:
        for case, label in group.facts:
            found.setdefault(case, {})[label] = group
    return found


def check(cases: Cases) -> None:
    """Everything once, which compiles it, too. All workers must have the same results."""
    for case, groups in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            for number, (label, group) in enumerate(groups.items()):
                group(case, label, look=str(Path(folder, str(number))))
                group(case, label)  # a second `fit` may compile once more
            results = {path.name: np.load(path) for path in sorted(Path(folder).glob("*.npy"))}
        first, *others = results.values()
        for name, result in zip(list(results)[1:], others, strict=True):
            if not np.allclose(first, result, rtol=0, atol=TOLERANCE):
                label = list(groups)[int(name.partition("-")[0])]
                far = np.abs(first - result).max()
                raise SystemExit(f"{case}: {label} differs from {next(iter(groups))} by {far:.2g}")
        say(f"{case}: {len(results)} results are the same")


def measure(options: argparse.Namespace, cases: Cases) -> dict[str, dict[str, list[float]]]:
    """Seconds of a unit by case and label, per round; the sides of a case in turn."""
    seconds = {case: {label: [] for label in groups} for case, groups in cases.items()}
    for number in range(options.rounds):
        start = time.monotonic()
        for case, groups in cases.items():
            for label in list(groups)[:: 1 if number % 2 else -1]:
                seconds[case][label].append(groups[label](case, label))
        say(f"round {number + 1} of {options.rounds}: {time.monotonic() - start:.1f} s")
    return seconds


def show(
    options: argparse.Namespace, cases: Cases, seconds: dict[str, dict[str, list[float]]]
) -> None:
    """Each side beside the first of its case, with ratios by round."""
    print(
        f"{WORKERS} workers of 1 device on {os.cpu_count()} cores; a CNN with batches of "
        f"{options.batch_size}, all workers together; {options.rounds} rounds, medians and ranges"
    )
    for number, variable in enumerate(options.also, 1):
        print(f"environment {number}: {variable}")
    wide = max(map(len, seconds))
    wider = max(len(label) for found in seconds.values() for label in found)
    print(f"{'':{wide + wider + 3}}{'ms':>9}{'':41}{'× the time of the first':>25}")
    for case, found in seconds.items():
        title, first = case, next(iter(found.values()))
        for label, values in found.items():
            middle, extent = spread(1e3 * value for value in values)
            line = f"{title:{wide}} {label:{wider}}  {middle:9.2f}  {extent:17}"
            title = ""
            much = cases[case][label].facts[case, label][1]
            unit, scale = ("images/s", 1) if case in (FIT, LOOP) else ("MB/s", MEGABYTE)
            line += f"{much / scale / middle * 1e3:12.0f} {unit:9}" if much else f"{'':22}"
            if values is not first:
                ratio, extent = spread(a / b for a, b in zip(values, first, strict=True))
                line += f"{ratio:9.2f}  ({extent})"
            print(line.rstrip())


def main() -> None:
    options = parse()
    if options.serve:
        serve(Plan(**json.loads(options.serve)))
        return
    end_cleanly_on_signals()
    if not options.tensorflow:
        say("TensorFlow is left out: name a Python that has it with --tensorflow")
    try:
        with all_groups(options) as groups:
            cases = cases_of(groups)
            check(cases)
            seconds = measure(options, cases)
    except SideFailed as error:
        raise SystemExit(str(error)) from error
    show(options, cases, seconds)
    if options.json:
        settings = {key: vars(options)[key] for key in ("steps", "batch_size", "also")}
        results = {**settings, "cores": os.cpu_count(), "seconds": seconds}
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
