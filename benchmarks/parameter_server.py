"""Parameter servers on one machine: what a step costs, how steps scale, how a cluster heals.

Dense models and a sparse table are trained by closures of a coordinator: by Replicax and, if a
Python is named that has it, by TensorFlow's ParameterServerStrategy with legacy Keras. Each side is
a coordinator with servers and workers as processes of their own; the sides of a case live side by
side and take turns, so that what else the machine does meets both. Updates are counted by each
optimizer and by a variable of ours. Both sides must end as one device does from the same weights.

    python benchmarks/parameter_server.py --tensorflow /path/to/python/with/tensorflow
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from harness.machine import processor
from harness.output import end_cleanly_on_signals, say, spread
from harness.processes import ADDRESS, Processes, SideFailed, free_addresses, tensorflow_member
from multi_worker import flat

FEATURES, CLASSES = 784, 10
DENSE_ROWS = 32  # of a batch
WIDTH, IDS, SPARSE_ROWS = 64, 10, 1024  # of the table; of an example; of a batch
BATCHES = 16
CHECKED_STEPS = 6  # one after the other
TOLERANCE = 1e-4
SETTINGS = {"KERAS_BACKEND": "jax", "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}

OURS, TENSORFLOW = "Replicax", "TensorFlow"
ONE_DEVICE = "Keras on one device"


@dataclass(frozen=True)
class Case:
    """What is trained.

    Args:
        name: What it is called.
        optimizer: Keras' name of its optimizer.
        rate: The learning rate: large enough for updates to be seen.
        hidden: Units of a dense model's hidden layer; 0 for the sparse one.
        table: Rows of the sparse model's table.
        target: How many times TensorFlow's steps per second we want to reach.
    """

    name: str
    optimizer: str
    rate: float
    hidden: int = 0
    table: int = 0
    target: float | None = None

    @cached_property
    def batches(self) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        if self.hidden:
            inputs = random.normal(size=(BATCHES, DENSE_ROWS, FEATURES)).astype("float32")
            return inputs, random.integers(0, CLASSES, (BATCHES, DENSE_ROWS)).astype("int32")
        ids = random.integers(0, self.table, (BATCHES, SPARSE_ROWS, IDS)).astype("int32")
        return ids, random.integers(0, 2, (BATCHES, SPARSE_ROWS, 1)).astype("float32")

    @cached_property
    def checked(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Batches of steps to compare. A table's are the same again: optimizers differ by whether
        they move rows that have no gradient."""
        inputs, labels = self.batches
        places = range(CHECKED_STEPS) if self.hidden else [0] * CHECKED_STEPS
        return [(inputs[i], labels[i]) for i in places]

    @property
    def settings(self) -> dict[str, float]:
        """Of the optimizer. An epsilon that is not tiny: gradients that are would, by Adam, make
        the rounding errors of a side as large as its steps."""
        extra = {"epsilon": 1e-5} if self.optimizer == "Adam" else {}
        return {"learning_rate": self.rate, **extra}

    @property
    def rows(self) -> np.ndarray:
        """The rows of the table that are compared."""
        return np.unique(self.checked[0][0])

    @property
    def weights(self) -> list[np.ndarray]:
        """Of the dense layers, at first."""
        units = (FEATURES, self.hidden, CLASSES) if self.hidden else (WIDTH, 1)
        random, found = np.random.default_rng(1), []
        for shape in itertools.pairwise(units):
            found.append((random.normal(size=shape) * (2 / shape[0]) ** 0.5).astype("float32"))
            found.append(np.zeros(shape[1], np.float32))
        return found


def table_values(shape: Any, dtype: Any = None, **_: Any) -> np.ndarray:
    """What a table holds at first, by any side: no 256 MB of random numbers."""
    values = np.random.default_rng(2).uniform(-0.05, 0.05, 10_007).astype("float32")
    return np.resize(values, tuple(shape))


SMALL = Case("dense 0.4 MB, SGD", "SGD", 0.01, hidden=125)


@dataclass(frozen=True)
class Stage:
    """Cases, and the clusters that they run on at the same time.

    Args:
        title: What is measured.
        cases: What is trained.
        clusters: Numbers of workers and of servers.
    """

    title: str
    cases: tuple[Case, ...]
    clusters: tuple[tuple[int, int], ...]


def stages(options: argparse.Namespace) -> list[Stage]:
    rates = {"SGD": 0.01, "Adagrad": 0.01, "Adam": 0.001}
    small, large, rows = (4, 8, 1000) if options.quick else (125, 4096, 1_000_000)

    def dense(size: str, hidden: int, optimizer: str, target: float | None) -> Case:
        return Case(f"dense {size}, {optimizer}", optimizer, rates[optimizer], hidden, 0, target)

    def sparse(optimizer: str) -> Case:
        rate = 10.0 if optimizer == "SGD" else rates[optimizer]  # a row's gradient is small
        return Case(f"sparse 1M × {WIDTH}, {optimizer}", optimizer, rate, 0, rows, 2.5)

    found = [
        Stage(
            "dense",
            tuple(
                dense(size, hidden, optimizer, target)
                for size, hidden, target in [("0.4 MB", small, 3.0), ("13 MB", large, 2.0)]
                for optimizer in ("SGD", "Adam")
            ),
            ((2, 1),),
        ),
        Stage("sparse", tuple(map(sparse, ("SGD", "Adagrad", "Adam"))), ((2, 2),)),
        Stage("scaling", (SMALL,), ((1, 1), (2, 1), (4, 1))),
    ]
    if options.quick:
        found = [Stage("quick", (found[0].cases[1], found[1].cases[1]), ((2, 2),))]
    kept = [
        Stage(
            stage.title,
            tuple(c for c in stage.cases if options.only in f"{stage.title}: {c.name}"),
            stage.clusters,
        )
        for stage in found
    ]
    return [stage for stage in kept if stage.cases]


@dataclass(frozen=True)
class Plan:
    """What a side's coordinator is told at its start.

    Args:
        side: Which of the sides.
        workers: How many workers it has.
        servers: How many servers.
        engine: The engine of our strategy.
        in_flight: How many closures each of our workers has under way; TensorFlow's have one.
        cases: What it may be asked to train.
    """

    side: str
    workers: int
    servers: int
    engine: str | None
    in_flight: int
    cases: tuple[Case, ...]

    @classmethod
    def read(cls, text: str) -> Plan:
        told = json.loads(text)
        return cls(**{**told, "cases": tuple(Case(**case) for case in told["cases"])})


# The sides. Each imports what it needs, in processes of its own.


@dataclass(frozen=True)
class Training:
    """A model on a cluster.

    Args:
        schedule: Has one step done on the worker's own data; gives what can be waited for.
        once: Does one step on a batch, and waits for it.
        counted: How many updates the optimizer has counted, and how many our variable.
        weights: All weights, of a table the rows that are compared.
    """

    schedule: Callable[[], Any]
    once: Callable[[np.ndarray, np.ndarray], object]
    counted: Callable[[], tuple[int, int]]
    weights: Callable[[], np.ndarray]


def keras_model(keras: Any, case: Case, embedding: Any) -> Any:
    """The model, in Keras 3 or in legacy Keras."""
    layers = keras.layers
    if case.hidden:
        inputs = keras.Input((FEATURES,))
        parts = [layers.Dense(case.hidden, activation="relu"), layers.Dense(CLASSES)]
    else:
        inputs = keras.Input((IDS,), dtype="int32")
        table = embedding(case.table, WIDTH, embeddings_initializer=table_values)
        parts = [table, layers.GlobalAveragePooling1D(), layers.Dense(1)]
    model = keras.Sequential([inputs, *parts])
    dense = model.layers if case.hidden else model.layers[-1:]
    for layer, *weights in zip(dense, case.weights[::2], case.weights[1::2], strict=True):
        layer.set_weights(weights)
    return model


class Replicax:
    """`ParameterServerStrategy` and its coordinator."""

    def __init__(self, plan: Plan) -> None:
        import keras

        import replicax as rx

        self._rx, self._keras, self._plan = rx, keras, plan
        partitioner = rx.experimental.partitioners.MinSizePartitioner(1 << 16, plan.servers)
        self._strategy = rx.ParameterServerStrategy(
            variable_partitioner=partitioner,
            num_workers=plan.workers,
            num_ps=plan.servers,
            engine=plan.engine,
            closures_in_flight=plan.in_flight,
        )
        self._coordinator = rx.coordinator.ClusterCoordinator(self._strategy)
        self.join = self._coordinator.join
        self.close = self._strategy.close

    def train(self, case: Case) -> Training:
        rx, coordinator = self._rx, self._coordinator
        with self._strategy.scope():
            model, optimizer, counter, step = self._step(case)

        @rx.function
        def from_data(iterator: Any) -> Any:
            return step(*next(iterator))

        once = rx.function(step)
        data = rx.data.Dataset.from_tensor_slices(case.batches).repeat()
        iterator = iter(coordinator.create_per_worker_dataset(data))

        def weights() -> np.ndarray:
            if case.hidden:
                return flat(model.get_weights())
            rows = rx.nn.embedding_lookup(model.layers[0].embeddings, case.rows)
            return flat([rows, *model.layers[-1].get_weights()])

        return Training(
            lambda: coordinator.schedule(from_data, args=(iterator,)),
            lambda *batch: coordinator.schedule(once, args=batch).fetch(),
            lambda: (int(optimizer.iterations.value), int(counter.value)),
            weights,
        )

    def on_one_device(self, case: Case) -> np.ndarray:
        """What a program without a strategy comes to; its table has only rows that are used."""
        rows, batches = case.rows, case.checked
        if not case.hidden:
            small = Case(**{**asdict(case), "table": len(rows)})
            model, _, _, step = self._step(small)
            model.layers[0].embeddings.assign(table_values((case.table, WIDTH))[rows])
            batches = [(np.searchsorted(rows, ids).astype("int32"), y) for ids, y in batches]
        else:
            model, _, _, step = self._step(case)
        once = self._rx.function(step)
        for batch in batches:
            once(*batch)
        return flat(model.get_weights())

    def members(self, role: str) -> list[int]:
        """The processes of servers or workers; those that listen where these are to be found."""
        cluster = self._strategy.coordination.engine.cluster
        count = cluster.num_servers if role == "server" else cluster.num_workers
        ports = []
        for index in range(count):
            addresses = cluster.member(role, index).addresses
            ports += [
                int(a.partition("#")[0].rpartition(":")[2])
                for a in addresses
                if a.startswith("tcp:")
            ]
        return [listening(port) for port in ports]

    def kill(self, role: str) -> None:
        os.kill(self.members(role)[0], signal.SIGKILL)

    def _step(self, case: Case) -> tuple[Any, Any, Any, Callable[..., Any]]:
        rx, keras = self._rx, self._keras
        model = keras_model(keras, case, rx.layers.ShardedEmbedding)
        optimizer = getattr(keras.optimizers, case.optimizer)(**case.settings)
        counter = keras.Variable(0, dtype="int32", trainable=False)
        losses = keras.losses
        if case.hidden:
            loss: Any = losses.SparseCategoricalCrossentropy(from_logits=True)
        else:
            loss = losses.BinaryCrossentropy(from_logits=True)

        def step(x: Any, y: Any) -> Any:
            def loss_fn() -> Any:
                return loss(y, model(x, training=True))

            value, gradients = rx.value_and_grad(loss_fn, model)()
            optimizer.apply(gradients, model.trainable_variables)
            counter.assign_add(1)
            return value

        return model, optimizer, counter, step


class TensorFlow:
    """`ParameterServerStrategy` with legacy Keras: Keras 3 does not work there.

    Servers and workers are children of the coordinator. One that dies is started again, as a
    cluster manager would.
    """

    def __init__(self, plan: Plan) -> None:
        jobs = {"chief": 1, "worker": plan.workers, "ps": plan.servers}
        addresses = iter(free_addresses(sum(jobs.values())))
        self._spec = {job: [next(addresses) for _ in range(jobs[job])] for job in jobs}
        self._members: dict[tuple[str, int], subprocess.Popen] = {}
        self._closing = False
        self._watchers: list[threading.Thread] = []
        workers, servers = range(plan.workers), range(plan.servers)
        for member in [*(("worker", k) for k in workers), *(("ps", k) for k in servers)]:
            self._start(*member)
            watcher = threading.Thread(target=self._watch, args=member, daemon=True)
            self._watchers.append(watcher)
            watcher.start()
        os.environ["TF_CONFIG"] = self._config("chief", 0)
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]
        import tf_keras  # pyright: ignore[reportMissingImports]

        self._tf, self._keras, self._plan = tf, tf_keras, plan
        partitioners = tf.distribute.experimental.partitioners
        self._strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            variable_partitioner=partitioners.MinSizePartitioner(1 << 16, plan.servers),
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(self._strategy)
        self.join = self._coordinator.join

    def train(self, case: Case) -> Training:
        tf, strategy, coordinator = self._tf, self._strategy, self._coordinator
        with strategy.scope():
            model = keras_model(self._keras, case, self._keras.layers.Embedding)
            optimizer = self._optimizer(case)
            optimizer._create_all_weights(model.trainable_variables)  # there is no other way
            counter = tf.Variable(0, dtype=tf.int64, trainable=False)

        def loss(y: Any, outputs: Any) -> Any:
            if case.hidden:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, outputs)
            else:
                losses = tf.nn.sigmoid_cross_entropy_with_logits(y, outputs)
            return tf.reduce_mean(losses)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            gradients = tape.gradient(value, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            counter.assign_add(1)
            return value

        @tf.function
        def once(x: Any, y: Any) -> Any:
            return strategy.run(step, args=(x, y))

        @tf.function
        def from_data(iterator: Any) -> Any:
            return strategy.run(step, args=next(iterator))

        def dataset() -> Any:
            return tf.data.Dataset.from_tensor_slices(case.batches).repeat()

        iterator = iter(coordinator.create_per_worker_dataset(dataset))

        def weights() -> np.ndarray:
            if case.hidden:
                return flat(model.get_weights())
            rows = tf.nn.embedding_lookup(model.layers[0].embeddings, case.rows)
            return flat([rows.numpy(), *model.layers[-1].get_weights()])

        return Training(
            lambda: coordinator.schedule(from_data, args=(iterator,)),
            lambda *batch: coordinator.schedule(once, args=tuple(map(tf.constant, batch))).fetch(),
            lambda: (int(optimizer.iterations.numpy()), int(counter.numpy())),
            weights,
        )

    def _optimizer(self, case: Case) -> Any:
        """The older ones: they are faster, and the newer SGD moves all rows of a table, always.

        Adam does so, too, the older and the newer; on a table we write one that does not.
        """
        legacy = self._keras.optimizers.legacy
        kind = getattr(legacy, case.optimizer)
        if case.optimizer == "Adam" and not case.hidden:
            kind = lazy_adam(self._tf, kind)
        return kind(**case.settings)

    def kill(self, role: str) -> None:
        self._members[{"server": "ps"}.get(role, role), 0].kill()

    def close(self) -> None:
        self._closing = True
        for member in self._members.values():
            member.kill()  # they end in no other way
        for watcher in self._watchers:
            watcher.join()

    def _config(self, job: str, index: int) -> str:
        return json.dumps({"cluster": self._spec, "task": {"type": job, "index": index}})

    def _start(self, job: str, index: int) -> None:
        self._members[job, index] = subprocess.Popen(
            [sys.executable, __file__, "--member"],
            env={**os.environ, "TF_CONFIG": self._config(job, index)},
        )

    def _watch(self, job: str, index: int) -> None:
        while True:
            self._members[job, index].wait()
            if self._closing:
                return
            self._start(job, index)


def lazy_adam(tf: Any, adam: Any) -> Any:
    """An Adam that moves only rows with a gradient, as the one of TensorFlow Addons did."""

    class LazyAdam(adam):
        def _resource_apply_sparse(
            self, grad: Any, var: Any, indices: Any, apply_state: Any = None
        ) -> Any:
            known = apply_state[(var.device, var.dtype.base_dtype)]
            slots = [self.get_slot(var, name) for name in "mv"]
            moments = [
                decay * tf.gather(slot, indices) + (1 - decay) * term
                for slot, decay, term in zip(
                    slots, [known["beta_1_t"], known["beta_2_t"]], [grad, grad * grad], strict=True
                )
            ]
            first, second = moments
            change = known["lr"] * first / (tf.sqrt(second) + known["epsilon"])
            written = [
                tf.raw_ops.ResourceScatterUpdate(resource=s.handle, indices=indices, updates=moment)
                for s, moment in zip(slots, moments, strict=True)
            ]
            return tf.group(*written, self._resource_scatter_add(var, indices, -change))

    return LazyAdam


SIDES: Mapping[str, Callable[[Plan], Any]] = {OURS: Replicax, TENSORFLOW: TensorFlow}


class Program:
    """A side's coordinator: does what it is told, until nobody is there to tell."""

    def __init__(self, plan: Plan) -> None:
        self._side = SIDES[plan.side](plan)
        self._cases = {case.name: case for case in plan.cases}
        self._trainings: dict[str, Training] = {}

    def serve(self, connection: socket.socket) -> None:
        stream = connection.makefile("rw")
        try:
            for line in stream:
                order = json.loads(line)
                answer = getattr(self, order.pop("do"))(**order)
                print(json.dumps(answer), file=stream, flush=True)
        finally:
            self._side.close()

    def begin(self) -> None:
        """There is nothing to do: whoever is answered knows that the cluster is up."""

    def check(self, case: str, folder: str) -> None:
        """Steps one after the other; where they lead to goes to a file."""
        training, name = self._training(case), type(self._side).__name__
        before = training.weights()
        for batch in self._cases[case].checked:
            training.once(*batch)
        self._side.join()
        np.save(Path(folder, f"{name}.npy"), training.weights())
        if isinstance(self._side, Replicax):
            np.save(Path(folder, "start.npy"), before)
            np.save(Path(folder, f"{ONE_DEVICE}.npy"), self._side.on_one_device(self._cases[case]))

    def turn(self, case: str, steps: int) -> float:
        """The seconds that some steps take, all of them applied."""
        training = self._training(case)
        before = training.counted()
        start = time.perf_counter()
        for _ in range(steps):
            training.schedule()
        self._side.join()
        seconds = time.perf_counter() - start
        for earlier, now in zip(before, training.counted(), strict=True):
            if now - earlier != steps:
                raise SystemExit(f"{case}: {steps} steps, but {now - earlier} updates")
        return seconds

    def recover(self, case: str, role: str, steps: int) -> dict[str, Any]:
        """Kill a member in the middle of some steps: when does the next one end, are all done?"""
        training = self._training(case)
        before, ended = training.counted()[1], []
        values = [training.schedule() for _ in range(steps)]

        def watch() -> None:
            with contextlib.suppress(Exception):  # which `join` raises, too
                for value in values:
                    value.get()
                    ended.append(time.perf_counter())

        watcher = threading.Thread(target=watch)
        watcher.start()
        while len(ended) < steps // 4:
            time.sleep(0.001)
        killed = time.perf_counter()
        self._side.kill(role)
        error = ""
        try:
            self._side.join()
        except Exception as raised:
            error = type(raised).__name__
        over = time.perf_counter()
        watcher.join()
        if error:
            return {"seconds": over - killed, "raised": error}
        times = [killed, *(when for when in ended if when > killed)]
        _, back = max((later - earlier, later) for earlier, later in itertools.pairwise(times))
        missing = steps - (training.counted()[1] - before)
        return {"seconds": back - killed, "missing": missing}

    def _training(self, case: str) -> Training:
        if case not in self._trainings:
            self._trainings[case] = self._side.train(self._cases[case])
        return self._trainings[case]


def listening(port: int) -> int:
    """The process that listens on a TCP port of this machine."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    places = [f"socket:[{x[9]}]" for x in lines if x[3] == "0A" and x[1].endswith(f":{port:04X}")]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(file) in places for file in (process / "fd").iterdir()):
                return int(process.name)
    raise SystemExit(f"nobody listens on port {port}")


class Group(Processes):
    """A side, from here.

    Args:
        plan: What its coordinator is told.
        python: What runs it.
    """

    def __init__(self, plan: Plan, python: str) -> None:
        self.plan = plan
        count = plan.workers
        label = f"{plan.side}, {count} worker{'s' if count > 1 else ''}"
        arguments = [python, __file__, "--serve", json.dumps(asdict(plan))]
        super().__init__(label, [(arguments, SETTINGS)])

    def __enter__(self) -> Group:
        super().__enter__()
        try:
            self("begin")
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __call__(self, do: str, **how: Any) -> Any:
        """Have something done; the answer."""
        (answer,) = self.tell(do=do, **how)
        return answer

    def restart(self) -> None:
        """The same anew."""
        self.__exit__(None)
        self.__enter__()


Found = dict[str, dict[str, dict[str, list[float]]]]  # case → label → what → per round


@contextlib.contextmanager
def groups_of(
    options: argparse.Namespace, cases: tuple[Case, ...], clusters: Iterable[tuple[int, int]]
) -> Iterator[list[Group]]:
    """Start the sides; all of them end with the block, however it ends."""
    with contextlib.ExitStack() as stack:
        found = []
        for workers, servers in clusters:
            for side, python in sides(options):
                plan = Plan(side, workers, servers, options.engine, options.in_flight, cases)
                found.append(stack.enter_context(Group(plan, python)))
        yield found


def sides(options: argparse.Namespace) -> list[tuple[str, str]]:
    found = [(OURS, sys.executable)]
    return [*found, (TENSORFLOW, options.tensorflow)] if options.tensorflow else found


def check(case: Case, groups: Sequence[Group]) -> None:
    """All sides must come to what one device comes to, and away from where they began."""
    with tempfile.TemporaryDirectory() as folder:
        for group in groups:
            group("check", case=case.name, folder=folder)
        results = {path.stem: np.load(path) for path in sorted(Path(folder).glob("*.npy"))}
    start, expected = results.pop("start"), results.pop(ONE_DEVICE)
    moved = np.abs(expected - start).max()
    for side, result in results.items():
        far = np.abs(result - expected).max()
        if not far <= min(TOLERANCE, moved / 100):
            raise SystemExit(f"{case.name}: {side} is {far:.2g} away from {ONE_DEVICE}")
    say(f"{case.name}: {', '.join(results)} came to the same as {ONE_DEVICE}")


def measure(options: argparse.Namespace, stage: Stage) -> Found:
    found: Found = {}
    with groups_of(options, stage.cases, stage.clusters) as groups:
        for case in stage.cases:
            check(case, groups)
            steps = {group: steps_of_a_turn(options, group, case) for group in groups}
            found[case.name] = {group.label: {"steps/s": [], "cpu": []} for group in groups}
            for number in range(options.rounds):
                for group in groups[:: 1 if number % 2 else -1]:
                    before = group.cpu()
                    seconds = group("turn", case=case.name, steps=steps[group])
                    used = group.cpu() - before
                    lists = found[case.name][group.label]
                    lists["steps/s"].append(steps[group] / seconds)
                    lists["cpu"].append(used / steps[group])
            say(f"{case.name}: {options.rounds} rounds")
    return found


def steps_of_a_turn(options: argparse.Namespace, group: Group, case: Case) -> int:
    """As many as fill it. The first steps compile."""
    few = 4 * group.plan.workers
    group("turn", case=case.name, steps=few)
    rate = few / group("turn", case=case.name, steps=few)
    if rate * options.seconds > 4 * few:  # that was too short to tell
        steps = int(rate * options.seconds / 4)
        rate = steps / group("turn", case=case.name, steps=steps)
    return max(few, int(rate * options.seconds))


def recover(options: argparse.Namespace, case: Case) -> dict[str, dict[str, list[Any]]]:
    """Role → side → what came of each kill. With one worker nobody else does its steps."""
    found: dict[str, dict[str, list[Any]]] = {}
    with groups_of(options, (case,), [(1, 1)]) as groups:
        for role in ("worker", "server"):
            found[role] = {group.plan.side: [] for group in groups}
            for _, group in itertools.product(range(min(3, options.rounds)), groups):
                steps = steps_of_a_turn(options, group, case)
                result = group("recover", case=case.name, role=role, steps=steps)
                if "raised" in result:  # the program has to be started again
                    start = time.perf_counter()
                    group.restart()
                    group("turn", case=case.name, steps=1)
                    result["again"] = time.perf_counter() - start
                found[role][group.plan.side].append(result)
                say(f"{role} of {group.label} killed: {json.dumps(result)}")
    return found


def show(stage: Stage, found: Found) -> None:
    """Steps per second and milliseconds of CPU, with the ratios to TensorFlow's turn by turn."""
    wide = max(len(case.name) for case in stage.cases)
    wider = max(len(label) for sides in found.values() for label in sides)
    print(
        f"\n{stage.title:{wide}} {'':{wider}}  {'steps/s':>8} {'':15} {'CPU ms a step':>14} {'':13}"
        f"{'× TensorFlow':>13} {'':13}{'target':>7}"
    )
    for case in stage.cases:
        title, sides = case.name, found[case.name]
        for label, lists in sides.items():
            rate, extent = spread(lists["steps/s"])
            line = f"{title:{wide}} {label:{wider}}  {rate:8.1f} {extent:15}"
            rate, extent = spread(1e3 * seconds for seconds in lists["cpu"])
            line += f" {rate:14.2f} {extent:13}"
            title, theirs = "", label.replace(OURS, TENSORFLOW)
            if label != theirs and theirs in sides:
                pairs = zip(lists["steps/s"], sides[theirs]["steps/s"], strict=True)
                ratio, extent = spread(ours / other for ours, other in pairs)
                target = f"≥ {case.target:g}" if case.target else ""
                line += f"{ratio:13.2f} {extent:13}{target:>7}"
            print(line.rstrip())
        if len(stage.clusters) > 1:
            show_scaling(sides)


def show_scaling(sides: dict[str, dict[str, list[float]]]) -> None:
    for side in OURS, TENSORFLOW:
        rates = [lists["steps/s"] for label, lists in sides.items() if label.startswith(side)]
        if rates:
            first, *others = rates
            pairs = [spread(b / a for a, b in zip(first, other, strict=True)) for other in others]
            text = ", ".join(f"{ratio:.2f} ({extent})" for ratio, extent in pairs)
            print(f"  {side}, × the steps/s of one worker: {text}")


def show_recovery(found: dict[str, dict[str, list[Any]]]) -> None:
    print("\nrecovery: killed with SIGKILL in the middle of steps, one worker, one server")
    for role, by_side in found.items():
        for side, results in by_side.items():
            seconds, extent = spread(result["seconds"] for result in results)
            line = f"{role:7} {side:10}  "
            if "raised" in results[0]:
                again, more = spread(result["again"] for result in results)
                line += (
                    f"{results[0]['raised']} after {seconds:.2f} s ({extent}); a program that is "
                )
                line += f"started again has done a step {again:.2f} s ({more}) later"
            else:
                missing = sorted({result["missing"] for result in results})
                line += f"the next step ended after {seconds:.2f} s ({extent}); updates missing: "
                line += " or ".join(map(str, missing))
            print(line)


def load() -> str:
    return " ".join(f"{average:.1f}" for average in os.getloadavg())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side (default 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default 2)")
    parser.add_argument("--only", default="", help="cases whose 'stage: name' holds this")
    parser.add_argument("--no-recovery", action="store_true", help="kill nothing")
    parser.add_argument("--engine", help="of our side: see `rx.ParameterServerStrategy`")
    parser.add_argument(
        "--in-flight", type=int, default=1, help="our closures for each worker (default 1)"
    )
    parser.add_argument(
        "--tensorflow", metavar="PYTHON", help="has TensorFlow and tf_keras; without it, left out"
    )
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # as the coordinator of a side
    parser.add_argument("--member", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.no_recovery = 1, 0.02, True
        options.engine, options.tensorflow = "threads", None
    return options


def main() -> None:
    options = parse()
    if options.member:
        tensorflow_member()
        return
    end_cleanly_on_signals()
    if options.serve:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.environ[ADDRESS])
            Program(Plan.read(options.serve)).serve(connection)
        return
    if not options.tensorflow:
        say("TensorFlow is left out: name a Python that has it with --tensorflow")
    wanted = stages(options)
    start, results = load(), {}
    try:
        for stage in wanted:
            results[stage.title] = measure(options, stage)
        healed = {} if options.no_recovery else recover(options, SMALL)
    except SideFailed as error:
        raise SystemExit(str(error)) from error
    print(
        f"{os.cpu_count()} cores ({processor()}), everything over loopback; "
        f"{options.rounds} rounds of {options.seconds:g} s, medians and ranges; "
        f"load averages {start} before and {load()} after"
    )
    for stage in wanted:
        show(stage, results[stage.title])
    if healed:
        show_recovery(healed)
    if options.json:
        settings = {key: vars(options)[key] for key in ("rounds", "seconds", "engine", "in_flight")}
        facts = {**settings, "cores": os.cpu_count(), "load": [start, load()]}
        options.json.write_text(json.dumps({**facts, **results, "recovery": healed}, indent=1))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
