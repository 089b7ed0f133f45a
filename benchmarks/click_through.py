"""A click-through model on two CPU workers: parameter servers against all-reduce.

Clicks are drawn from a planted model: ten categorical features whose ids follow Zipf's law, five
numbers, and a factorisation machine that gives each example its probability. So the AUC of the
truth itself is known, and no model can do better. A small DLRM is trained on an endless stream of
such examples, each way for the same time: by asynchronous parameter servers, by all-reduce, and by
one process alone, for comparison. Each of them once undisturbed, once with a worker whose data come
late, and once with a worker that is killed.

While a side trains, its weights are copied to disk now and then; their AUC is computed afterwards,
when nothing is timed any more.

    python benchmarks/click_through.py --seconds 60 --plot docs/images/click_through.png
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness.output import end_cleanly_on_signals, say

WORKERS = 2
VICTIM = 1  # the worker that is slow, or is killed
NUMBERS = 5
VOCABULARIES = (100_000, 60_000, 30_000, 10_000, 5_000, 1_000, 500, 100, 50, 20)
ZIPF = 1.2
RATE, ACCUMULATOR = 0.1, 1e-4  # Adagrad's
WIDTH = 8  # of a row of the table
AHEAD = 64  # closures that are scheduled and have not ended
SECONDS_TO_END = 240

PLAIN, SLOW, KILLED = "undisturbed", "slow worker", "killed worker"
ASYNC, SYNC, ALONE = "parameter server", "all-reduce", "one process"
COLOURS = {ASYNC: "tab:blue", SYNC: "tab:orange", ALONE: "tab:gray"}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="that a side trains (default 60)")
    parser.add_argument("--rounds", type=int, default=1, help="turns of each side (default 1)")
    parser.add_argument("--batch-size", type=int, default=512, help="of a worker (default 512)")
    parser.add_argument(
        "--target",
        type=float,
        default=0.85,
        metavar="PART",
        help="of the way from an AUC of 0.5 to that of the truth (default 0.85)",
    )
    parser.add_argument(
        "--scale", type=int, default=1, help="by how much fewer ids there are (default 1)"
    )
    parser.add_argument(
        "--delay", type=float, default=0.2, help="seconds a batch of the slow worker (default 0.2)"
    )
    parser.add_argument(
        "--kill-after", type=float, default=10, help="seconds of training (default 10)"
    )
    parser.add_argument("--only", default="", help="sides and scenes whose names hold this")
    parser.add_argument("--engine", help="of the parameter servers: processes (default) or threads")
    parser.add_argument("--quick", action="store_true", help="little of everything, in threads")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the AUC over time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # as a side
    options = parser.parse_args()
    if options.quick:
        options.seconds, options.batch_size, options.target = 1.0, 64, 0.1
        options.scale, options.delay, options.engine = 200, 0.05, "threads"
    return options


@dataclass(frozen=True)
class Plan:
    """What a side is told.

    Args:
        side: Its name.
        scene: What happens to one of the workers.
        folder: Where the weights go.
        seconds: How long it trains.
        batch_size: Of a worker.
        delay: Seconds that a batch of the slow worker comes late.
        kill_after: Seconds of training.
        engine: Of parameter servers.
        scale: By how much vocabularies are smaller.
    """

    side: str
    scene: str
    folder: str
    seconds: float
    batch_size: int
    delay: float
    kill_after: float
    engine: str | None
    scale: int

    def clicks(self) -> Clicks:
        """The world, made anew: it is the same in all processes."""
        return Clicks(tuple(max(10, size // self.scale) for size in VOCABULARIES))

    def note(self, what: str) -> Path:
        """A moment that all processes of the side should know, such as the begin of training."""
        return Path(self.folder, what)

    def begin(self) -> float:
        """The begin of training: everything has been compiled."""
        with contextlib.suppress(FileExistsError), self.note("began").open("x") as file:
            file.write(repr(time.time()))
        return float(self.note("began").read_text())


class Clicks:
    """The world: which ids there are, and how likely a click is.

    logit = b + Σ_f w_f[id_f] + Σ_{f<g} ⟨v_f[id_f], v_g[id_g]⟩ + ⟨u, x⟩ + 0.3 x₀ x₁

    Args:
        sizes: How many ids each feature has.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        random = np.random.default_rng(0)
        self.ids = sum(sizes)
        self.features = len(sizes)
        # All features have one table: the ids of the second begin behind those of the first.
        self.begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._weights = random.normal(scale=0.4, size=self.ids)
        self._factors = random.normal(scale=0.25, size=(self.ids, 4))
        self._slopes = random.normal(scale=0.3, size=NUMBERS)
        shares = [1 / np.arange(1, size + 1) ** ZIPF for size in sizes]
        self._distributions = [np.cumsum(share) / share.sum() for share in shares]

    def draw(self, count: int, *key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Ids, numbers, labels and true logits; the same for the same key."""
        random = np.random.default_rng(key)
        ids = np.empty((count, self.features), np.int32)
        for feature, distribution in enumerate(self._distributions):
            found = np.searchsorted(distribution, random.random(count))
            ids[:, feature] = found + self.begins[feature]
        numbers = random.normal(size=(count, NUMBERS)).astype("float32")
        factors = self._factors[ids]
        # The sum over pairs by its usual identity: half of (Σv)² - Σv².
        pairs = 0.5 * (factors.sum(axis=1) ** 2 - (factors**2).sum(axis=1)).sum(axis=1)
        logits = -1.5 + self._weights[ids].sum(axis=1) + pairs + numbers @ self._slopes
        logits += 0.3 * numbers[:, 0] * numbers[:, 1]
        labels = random.random(count) < 1 / (1 + np.exp(-logits))
        return ids, numbers, labels.astype("float32"), logits


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The part of the pairs (click, no click) that the scores have in the right order.

    Exactly, by ranks (Mann and Whitney), a tie as half a pair. Keras' metric counts in 200 bins.
    """
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    clicks = labels.sum()
    pairs = clicks * (len(labels) - clicks)
    return float((ranks[labels > 0].sum() - clicks * (clicks + 1) / 2) / pairs)


def stream(plan: Plan, worker: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The data of a worker: new examples for ever. What happens to the worker happens here."""
    key = worker, openings(plan, worker)  # after a restart other examples come than before
    clicks, number = plan.clicks(), 0
    while True:
        number += 1
        if worker == VICTIM and plan.scene == SLOW:
            time.sleep(plan.delay)
        if worker == VICTIM and plan.scene == KILLED:
            die_once(plan)
        ids, numbers, labels, _ = clicks.draw(plan.batch_size, *key, number)
        yield ids, numbers, labels


def openings(plan: Plan, worker: int) -> int:
    """How often a worker has begun to read before."""
    count = 0
    while True:
        try:
            plan.note(f"opened-{worker}-{count}").touch(exist_ok=False)
        except FileExistsError:
            count += 1
        else:
            return count


def die_once(plan: Plan) -> None:
    """End this process hard, once, when it is time."""
    began, killed = plan.note("began"), plan.note("killed")
    if killed.exists() or not began.exists():
        return
    if time.time() > float(began.read_text() or "inf") + plan.kill_after:
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)


# The sides.


class Model:
    """The model, its optimizer and a step; variables belong to the scope they are made in."""

    def __init__(self, plan: Plan) -> None:
        import keras

        import replicax as rx

        keras.utils.set_random_seed(0)
        clicks = plan.clicks()
        ids = keras.Input((clicks.features,), dtype="int32")
        numbers = keras.Input((NUMBERS,))
        small = keras.initializers.RandomNormal(stddev=0.05)
        rows = rx.layers.ShardedEmbedding(clicks.ids, WIDTH, small)(ids)
        weights = rx.layers.ShardedEmbedding(clicks.ids, 1, "zeros")(ids)
        total = keras.ops.sum(rows, axis=1)
        pairs = 0.5 * (total**2 - keras.ops.sum(rows**2, axis=1))
        hidden = keras.layers.Concatenate()([keras.layers.Flatten()(rows), pairs, numbers])
        for units in (64, 32):
            hidden = keras.layers.Dense(units, "relu")(hidden)
        logits = keras.layers.Dense(1)(hidden) + keras.ops.sum(weights, axis=1)
        logits += keras.ops.sum(pairs, axis=1, keepdims=True)
        self.keras = keras.Model([ids, numbers], logits)
        self.optimizer = keras.optimizers.Adagrad(RATE, initial_accumulator_value=ACCUMULATOR)
        self.losses = keras.losses.BinaryCrossentropy(from_logits=True, reduction="none")

    def step(self, batch: Any, rows: Any) -> Any:
        """One update from a batch; the loss is the sum over it, divided by `rows`."""
        import replicax as rx

        ids, numbers, labels = batch

        def loss_fn() -> Any:
            logits = self.keras([ids, numbers], training=True)
            return self.losses(labels[:, None], logits).sum() / rows

        loss, gradients = rx.value_and_grad(loss_fn, self.keras)()
        self.optimizer.apply(gradients, self.keras.trainable_variables)
        return loss


class Recorder:
    """Writes weights to disk now and then, until the time is over.

    Args:
        plan: Says where, and how long.
        model: Whose weights.
    """

    def __init__(self, plan: Plan, model: Model) -> None:
        self._plan, self._model = plan, model
        self._began = plan.begin()
        self._every = plan.seconds / 25
        self._next = 0.0

    def is_over(self) -> bool:
        """Write, if it is time to; whether the end has come."""
        seconds = time.time() - self._began
        if seconds >= self._next:
            weights = [variable.numpy() for variable in self._model.keras.variables]
            path = self._plan.note(f"{seconds:09.3f}.npz")
            np.savez(path.with_suffix(".part.npz"), *weights)
            os.replace(path.with_suffix(".part.npz"), path)
            self._next = time.time() - self._began + self._every
        return seconds > self._plan.seconds

    def examples(self, count: int) -> None:
        """How many examples were trained on; what is written last, counts."""
        self._plan.note("examples").write_text(str(count))


def with_servers(plan: Plan) -> None:
    """One server and two workers; the program itself is the coordinator."""
    import replicax as rx

    strategy = rx.ParameterServerStrategy(
        num_workers=WORKERS,
        num_ps=1,
        engine=plan.engine,
        snapshot_seconds=10,
    )
    try:
        with strategy.scope():
            model = Model(plan)
        coordinator = rx.coordinator.ClusterCoordinator(strategy)

        def data() -> Any:
            worker = rx.coordinator.experimental_get_current_worker_index()
            return stream(plan, worker)

        iterator = iter(coordinator.create_per_worker_dataset(data))
        step = rx.function(lambda iterator: model.step(next(iterator), plan.batch_size))
        for _ in range(4 * WORKERS):  # until each worker has compiled it
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        count, waiting, recorder = 0, deque(), Recorder(plan, model)
        while not recorder.is_over():
            waiting.append(coordinator.schedule(step, args=(iterator,)))
            if len(waiting) > AHEAD:
                waiting.popleft().fetch()
                count += plan.batch_size
        recorder.examples(count)
        coordinator.join()
    finally:
        strategy.close()


def with_all_reduce(plan: Plan) -> None:
    """Two workers, started by `replicax run`; this is one of them, or the same one again."""
    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = Model(plan)
    steps = rx.train.Value(0)
    checkpoint = rx.train.Checkpoint(model=model.keras, optimizer=model.optimizer, steps=steps)
    manager = rx.train.CheckpointManager(checkpoint, plan.note("checkpoints"), max_to_keep=1)
    rows = WORKERS * plan.batch_size

    def replica_step(ids: Any, numbers: Any, labels: Any, orders: Any) -> Any:
        loss = model.step((ids, numbers, labels), rows)
        return rx.get_replica_context().all_reduce("SUM", (loss, orders.sum(axis=0)))

    def data(context: Any) -> Any:
        return ordered(plan, context.input_pipeline_id)

    batches = iter(strategy.distribute_datasets_from_function(data))
    recorder = None
    manager.restore_or_initialize()
    while True:
        _, orders = strategy.run(replica_step, args=next(batches))
        stop, save = np.asarray(orders)
        steps.value += 1
        if save:
            manager.save(steps.value)
        if strategy.extended.should_checkpoint:
            recorder = recorder or Recorder(plan, model)
            recorder.is_over()
            recorder.examples(steps.value * rows)
        if stop:
            break


def ordered(plan: Plan, worker: int) -> Iterator[Any]:
    """The stream, and what the chief wants all workers to do after the step: to stop, to save.

    All have to do it after the same step, so it comes with the data of that step.
    """
    saved = time.time()
    for batch in stream(plan, worker):
        orders = np.zeros((plan.batch_size, 2), np.float32)
        began = plan.note("began")
        if worker == 0 and began.exists():
            orders[0] = [
                time.time() > float(began.read_text() or "inf") + plan.seconds,
                time.time() > saved + 10,
            ]
        if orders[0, 1]:
            saved = time.time()
        yield *batch, orders


def alone(plan: Plan) -> None:
    """One process, with as many threads as XLA takes."""
    import replicax as rx

    model = Model(plan)
    batches = stream(plan, 0)
    step = rx.function(lambda *batch: model.step(batch, plan.batch_size))
    for _ in range(2):
        float(step(*next(batches)))
    count, recorder = 0, Recorder(plan, model)
    while not recorder.is_over():
        float(step(*next(batches)))
        count += plan.batch_size
    recorder.examples(count)


SIDES: Mapping[str, Callable[[Plan], None]] = {
    ASYNC: with_servers,
    SYNC: with_all_reduce,
    ALONE: alone,
}


# What starts them, and looks at what they have written.


@dataclass
class Curve:
    """What became of a side: seconds of training, and the AUC then."""

    seconds: list[float]
    auc: list[float]
    examples: int

    def reached(self, target: float) -> float | None:
        """When the AUC was there; None if never."""
        for number, value in enumerate(self.auc):
            if value >= target:
                if number == 0:
                    return self.seconds[0]
                part = (target - self.auc[number - 1]) / (value - self.auc[number - 1])
                return float(np.interp(part, [0, 1], self.seconds[number - 1 : number + 1]))
        return None


class Judge:
    """Computes the AUC of weights, on examples that nobody has trained on."""

    def __init__(self, plan: Plan, count: int) -> None:
        self._ids, self._numbers, self._labels, logits = plan.clicks().draw(count, 99)
        self.of_the_truth = auc(self._labels, logits)
        self._model = Model(plan).keras

    def __call__(self, plan: Plan) -> Curve:
        seconds, found = [], []
        for path in sorted(Path(plan.folder).glob("[0-9]*.npz")):
            with np.load(path) as weights:
                self._model.set_weights(list(weights.values()))
            scores = self._model.predict([self._ids, self._numbers], batch_size=8192, verbose=0)
            seconds.append(float(path.stem))
            found.append(auc(self._labels, scores[:, 0]))
        return Curve(seconds, found, int(plan.note("examples").read_text()))


def train(plan: Plan) -> None:
    """Let a side do its work, in processes of its own unless they are to be threads."""
    if plan.engine == "threads":
        SIDES[plan.side](plan)
        return
    mine = [__file__, "--serve", json.dumps(dataclasses.asdict(plan))]
    start = [sys.executable]
    if plan.side == SYNC:
        start += ["-m", "replicax.launch", "run", "--workers", str(WORKERS), "--max-restarts", "1"]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*start, *mine], stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(plan.seconds + SECONDS_TO_END)
        finally:
            process.terminate()
            process.wait(30)
        if code:
            output.seek(0)
            raise SystemExit(
                f"{plan.side}, {plan.scene}: exit code {code}\n{output.read()[-3000:]}"
            )


def cases(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Sides and scenes, in the order of the table."""
    scenes = (PLAIN, SLOW, KILLED)
    found = [(side, scene) for side in (ASYNC, SYNC) for scene in scenes]
    if options.quick:  # in threads there is one process, which is not to be killed
        found = [(ASYNC, SLOW)]
    found.append((ALONE, PLAIN))
    return [case for case in found if options.only in f"{case[0]}, {case[1]}"]


def measure(
    options: argparse.Namespace, judge: Judge | None = None
) -> tuple[dict[tuple[str, str], list[Curve]], float]:
    """The curves of all cases, and the AUC of the truth. The cases take turns."""
    curves: dict[tuple[str, str], list[Curve]] = {case: [] for case in cases(options)}
    for number in range(options.rounds):
        for side, scene in list(curves)[:: -1 if number % 2 else 1]:
            with tempfile.TemporaryDirectory(prefix="clicks-") as folder:
                plan = Plan(
                    side,
                    scene,
                    folder,
                    options.seconds,
                    options.batch_size,
                    options.delay,
                    options.kill_after,
                    options.engine,
                    options.scale,
                )
                start = time.monotonic()
                train(plan)
                judge = judge or Judge(plan, 2_000 if options.quick else 20_000)
                curve = judge(plan)
            curves[side, scene].append(curve)
            say(
                f"round {number + 1}, {side}, {scene}: AUC {curve.auc[-1]:.4f} after "
                f"{curve.examples:,} examples ({time.monotonic() - start:.0f} s in all)"
            )
    return curves, judge.of_the_truth if judge else 0.5


def show(
    options: argparse.Namespace, curves: Mapping[tuple[str, str], list[Curve]], truth: float
) -> None:
    """The table."""
    target = 0.5 + options.target * (truth - 0.5)
    print(
        f"{WORKERS} workers on {os.cpu_count()} cores, batches of {options.batch_size} for each, "
        f"{sum(VOCABULARIES) // options.scale:,} ids, {options.rounds} round(s) of "
        f"{options.seconds:g} s"
    )
    print(f"AUC of the truth {truth:.4f}, target {target:.4f}\n")
    print(f"{'':36}{'':15}{'seconds to':>13}{'AUC':>9}{'examples':>11}")
    print(f"{'':36}{'':15}{'the target':>13}{'at the end':>12}{'/ s':>8}")
    for (side, scene), found in curves.items():
        reached = [curve.reached(target) for curve in found]
        times = sorted(float("inf") if one is None else one for one in reached)
        middle = statistics.median_low(times)
        shown = "never" if middle == float("inf") else f"{middle:.1f}"
        end = statistics.median(curve.auc[-1] for curve in found)
        rate = statistics.median(curve.examples / curve.seconds[-1] for curve in found)
        print(f"{side:36}{scene:15}{shown:>13}{end:12.4f}{rate:8,.0f}")


def draw(path: Path, curves: Mapping[tuple[str, str], list[Curve]], truth: float) -> None:
    """The AUC over time, a panel for each scene; of several rounds the first."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scenes = list(dict.fromkeys(scene for _, scene in curves))
    figure, panels = pyplot.subplots(1, len(scenes), figsize=(4 * len(scenes), 3.2), sharey=True)
    for panel, scene in zip(np.atleast_1d(panels), scenes, strict=True):
        for (side, where), (first, *_) in curves.items():
            if where == scene:
                panel.plot(first.seconds, first.auc, color=COLOURS[side], label=side)
        panel.axhline(truth, color="black", linewidth=0.8, linestyle=":")
        panel.set(title=scene, xlabel="seconds of training", ylim=(0.65, truth + 0.01))
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("AUC on new examples")
    first.legend(loc="lower right", fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main() -> None:
    options = parse()
    os.environ["KERAS_BACKEND"] = "jax"  # of the sides, too
    if options.serve:
        plan = Plan(**json.loads(options.serve))
        SIDES[plan.side](plan)
        return
    end_cleanly_on_signals()
    curves, truth = measure(options)
    show(options, curves, truth)
    if options.plot:
        draw(options.plot, curves, truth)
    if options.json:
        found = {
            f"{side}, {scene}": [dataclasses.asdict(curve) for curve in some]
            for (side, scene), some in curves.items()
        }
        options.json.write_text(json.dumps({"truth": truth, "curves": found}, indent=1))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
