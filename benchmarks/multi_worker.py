"""Two workers on one machine: all-reduces, and what agreeing on batches costs.

By Replicax with two workers and, where nothing is to be reduced, with one; by JAX written by hand
in two processes; and by TensorFlow's MultiWorkerMirroredStrategy with two workers. The workers of
all sides live as long as the benchmark and take turns, so that one side computes at a time and what
else the machine does meets all of them. All must end with the same. Training: table.py.

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

WORKERS = 2
KILOBYTE, MEGABYTE = 2**10, 2**20
SIZES = (4 * KILOBYTE, 64 * KILOBYTE, MEGABYTE, 8 * MEGABYTE, 64 * MEGABYTE)
TENSORS = 50  # a model's gradients
TENSOR_SIZES = (4 * KILOBYTE, 64 * KILOBYTE)
REDUCED_A_ROUND = 64 * MEGABYTE  # in at most this many calls:
CALLS = 40
SMALL_STEPS, SMALL_ROWS = 100, 128
TOLERANCE = 1e-4

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
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument(
        "--tensorflow", metavar="PYTHON", help="has TensorFlow; without it, left out"
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
        options.rounds = 1
    return options


@dataclass(frozen=True)
class Plan:
    """What a worker is told at its start. All of them make the same data.

    Args:
        side: Which of the sides it belongs to.
        label: What the side is called.
        quick: Whether sizes do not matter.
        only: Cases whose names hold this.
    """

    side: str
    label: str
    quick: bool
    only: str

    @cached_property
    def small(self) -> tuple[np.ndarray, np.ndarray]:
        """A batch that takes no time."""
        rows = np.random.default_rng(2).random((SMALL_ROWS, 32), np.float32)
        return rows, rows.sum(axis=1, keepdims=True)

    @property
    def small_steps(self) -> int:
        return 5 if self.quick else SMALL_STEPS

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
        amount: The bytes of each of them.
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


class Replicax:
    """`strategy.run` and a distributed data set, with as many workers as are started."""

    def __init__(self, plan: Plan) -> None:
        import keras

        import replicax as rx

        self._plan, self._rx, self._keras = plan, rx, keras
        self._strategy = rx.MultiWorkerMirroredStrategy()

    def works(self) -> Works:
        label = self._plan.label
        found: Works = {}
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
    """`shard_map` and one packed `psum`."""

    def __init__(self, plan: Plan) -> None:
        import jax

        rank = int(os.environ["BENCHMARK_RANK"])
        jax.distributed.initialize(os.environ["BENCHMARK_ADDRESS"], WORKERS, rank)
        mesh = jax.make_mesh((WORKERS,), ("worker",))
        self._plan, self._mesh, self._rank = plan, mesh, rank
        self._split = jax.NamedSharding(mesh, jax.P("worker"))

    def works(self) -> Works:
        return {(case, BY_HAND): self._reduction(*how) for case, how in self._plan.reduced.items()}

    def _reduction(self, size: int, count: int, calls: int) -> Work:
        import jax

        own = np.full((1, size // 4), self._rank + 1, np.float32)
        make = jax.make_array_from_process_local_data
        values = [make(self._split, own) for _ in range(count)]
        pack = summed if count > 1 else lambda leaves: jax.lax.psum(leaves, "worker")
        mapped = jax.shard_map(
            lambda leaves: pack([v[0] for v in leaves]),
            mesh=self._mesh,
            in_specs=(jax.P("worker"),),
            out_specs=jax.P(),
            check_vma=False,
        )
        compiled = jax.jit(mapped)
        found: list[Any] = []

        def run() -> None:
            for _ in range(calls):
                found[:] = jax.block_until_ready(compiled(values))

        return Work(run, found.clear, lambda: ends(map(np.asarray, found)), calls, size * count)


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
    """`MultiWorkerMirroredStrategy`."""

    def __init__(self, plan: Plan) -> None:
        import tensorflow as tf  # pyright: ignore[reportMissingModuleSource]

        self._plan, self._tf = plan, tf
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy()

    def works(self) -> Works:
        found: Works = {}
        for case, (size, count, calls) in self._plan.reduced.items():
            found[case, TENSORFLOW] = self._reduction(size, count, calls, 0)
            if count > 1:
                unpacked = self._reduction(size, count, calls, 1)
                found[case, UNPACKED.format("TensorFlow")] = unpacked
        return found

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
            return Plan(side, label, options.quick, options.only)

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
        f"{WORKERS} workers of 1 device on {os.cpu_count()} cores; {options.rounds} rounds, "
        "medians and ranges"
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
            line += f"{much / MEGABYTE / middle * 1e3:12.0f} MB/s     " if much else f"{'':22}"
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
