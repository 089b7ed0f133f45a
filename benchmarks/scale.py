"""How cost grows: with replicas, workers, parameters, variables, rows of a batch, rows of a table.

Each curve runs in processes of its own; its points live side by side and take turns, so what else
the machine does meets all of them.

    python benchmarks/scale.py --only variables --json scale.json --plot docs/images
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from harness.output import end_cleanly_on_signals, say
from harness.processes import ADDRESS, MARK, Processes, inherited

KB, MB = 2**10, 2**20
TURN_SECONDS = 0.25  # about so long is a turn
MOST_STEPS = 50  # of a turn
REPLICAS = (1, 2, 4, 8)
WORKERS = (1, 2, 4)
PARAMETERS = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
VARIABLES = (10, 50, 150, 500, 1000, 2000)
ROWS = (8, 32, 128, 512, 2048, 8192)
TABLES = (10_000, 100_000, 1_000_000, 10_000_000)
SIZES = (4 * KB, 16 * KB, 64 * KB, 256 * KB, MB, 4 * MB, 16 * MB)
WIDTH = 16  # of the many variables


@dataclass
class Point:
    """One place of a curve.

    Args:
        curve: What is varied.
        side: What is measured, such as `2 replicas`.
        x: Where on the curve.
        seconds: Those of a step, of each turn.
        facts: What is measured once, such as the seconds of the first step.
    """

    curve: str
    side: str
    x: float
    seconds: list[float] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Step = Callable[[int], object]  # runs a number of steps, until the last one has ended
Made = tuple[str, float, Callable[[], Step]]  # side, x, and how the step is made


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--only", type=curves, default=tuple(CURVES), metavar="NAME,...", help=", ".join(CURVES)
    )
    parser.add_argument("--rounds", type=int, default=7, help="turns of each point (default 7)")
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="the measurements; kept curves of an earlier run stay in it",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw scale.png")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # one curve, or a worker of a group
    return parser.parse_args()


def curves(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - set(CURVES):
        raise argparse.ArgumentTypeError(f"no curve is called {', '.join(sorted(unknown))}")
    return names


# Timing.


def measure(curve: str, made: Iterator[Made], rounds: int) -> list[Point]:
    """Make all points of a curve, then let them take turns."""
    points: list[tuple[Point, Step, int]] = []
    for side, x, make in made:
        point = Point(curve, side, x)
        resident = reset_peak()
        with Compiling() as compiling:
            start = time.perf_counter()
            step = make()
            built = time.perf_counter()
            step(1)
            ended = time.perf_counter()
        point.facts = {"made s": built - start, "first step s": ended - built, **compiling.facts}
        step(2)
        start = time.perf_counter()
        step(1)
        steps = max(1, min(MOST_STEPS, int(TURN_SECONDS / (time.perf_counter() - start))))
        point.facts["peak MB"] = (peak() - resident) / MB
        points.append((point, step, steps))
        say(f"{curve}: {side}, {x:,.0f}: {steps} steps a turn")
    for number in range(rounds):
        for point, step, steps in points[:: 1 if number % 2 else -1]:
            start = time.perf_counter()
            step(steps)
            point.seconds.append((time.perf_counter() - start) / steps)
    return [point for point, _, _ in points]


class Compiling:
    """The seconds that JAX spends with tracing and with compiling in the block."""

    _EVENTS = {
        "/jax/core/compile/jaxpr_trace_duration": "trace s",
        "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower s",
        "/jax/core/compile/backend_compile_duration": "compile s",
    }

    def __enter__(self) -> Compiling:
        import jax

        self.facts = dict.fromkeys(self._EVENTS.values(), 0.0)
        jax.monitoring.register_event_duration_secs_listener(self._hear)
        return self

    def _hear(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in self._EVENTS:
            self.facts[self._EVENTS[event]] += duration_secs

    def __exit__(self, *_: object) -> None:
        self._EVENTS = {}  # the listener stays, and hears nothing more


def reset_peak() -> float:
    """Forget the largest memory of this process; the bytes that it has now."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak(process: str = "self", name: str = "VmHWM") -> float:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    return KB * float(found[1]) if found else 0.0


# What is measured, in processes that have several virtual devices.


def dense(units: tuple[int, ...]) -> Any:
    import keras

    keras.utils.set_random_seed(0)
    hidden = [keras.layers.Dense(unit, activation="relu") for unit in units[1:-1]]
    return keras.Sequential([keras.Input((units[0],)), *hidden, keras.layers.Dense(units[-1])])


def cross_entropy() -> Any:
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def examples(rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, features)).astype("float32")
    return x, random.integers(0, 10, rows).astype("int32")


def trainer(
    strategy: Any, model: Callable[[], Any], batch: Any, optimizer: Any = None, loss: Any = None
) -> Step:
    """Steps of a custom loop, always with the same batch."""
    import keras

    import replicax as rx

    with strategy.scope():
        built = model()
        descent = optimizer() if optimizer else keras.optimizers.SGD(1e-3)
        losses = loss or cross_entropy()

    def step(x: Any, y: Any) -> Any:
        value, gradients = rx.value_and_grad(lambda: losses(y, built(x, training=True)), built)()
        descent.apply(gradients, built.trainable_variables)
        return value

    placed = next(iter(strategy.experimental_distribute_dataset([batch])))

    def run(steps: int) -> None:
        value: Any = None
        for _ in range(steps):
            value = strategy.run(step, args=placed)
        for one in strategy.experimental_local_results(value):
            float(one)

    return run


def mirrored(replicas: int) -> Any:
    import replicax as rx

    return rx.MirroredStrategy([f"CPU:{i}" for i in range(replicas)])


def replicas(quick: bool) -> Iterator[Made]:
    """The same work, divided among more replicas of two cores: what rises is their cost."""
    batch, units = examples(32 if quick else 256, 784), (784, 8 if quick else 512, 512, 10)
    for n in REPLICAS:
        make = functools.partial(trainer, mirrored(n), lambda: dense(units), batch)
        yield "a step, 256 rows", n, make


def parameters(quick: bool) -> Iterator[Made]:
    for n in 1, 2:
        for count in PARAMETERS[: 2 if quick else None]:
            width = round(((266**2 + 4 * count) ** 0.5 - 266) / 2)  # of two hidden layers
            model = functools.partial(dense, (256, width, width, 10))
            batch = examples(32, 256)
            yield words(n, "replica"), count, functools.partial(trainer, mirrored(n), model, batch)


def words(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def batch(quick: bool) -> Iterator[Made]:
    for n in 1, 2:
        for rows in ROWS[: 2 if quick else None]:
            model = functools.partial(dense, (784, 512, 512, 10))
            data = examples(rows, 784)
            yield words(n, "replica"), rows, functools.partial(trainer, mirrored(n), model, data)


def variables(quick: bool) -> Iterator[Made]:
    """Many small variables: what each costs a step, and the compiler."""
    for count in VARIABLES[: 2 if quick else None]:
        yield "JAX by hand, 2 devices", count, functools.partial(by_hand, count)
        rows = np.ones((8, WIDTH), np.float32), np.zeros(8, np.float32)
        model = functools.partial(many_weights, count)
        make = functools.partial(trainer, mirrored(2), model, rows, loss=mean)
        yield "strategy.run, 2 replicas", count, make
        yield "fit, 2 replicas", count, functools.partial(fitter, mirrored(2), model, rows)
        yield "strategy.run, 1 device, assigns alone", count, functools.partial(assigner, count)


def assigner(count: int) -> Step:
    """A step that does nearly nothing, so nearly all of it is the host's."""
    import keras

    import replicax as rx

    strategy = rx.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        found = [keras.Variable(np.zeros(4, "float32")) for _ in range(count)]

    def step() -> Any:
        for variable in found:
            variable.assign_add(np.ones(4, "float32"))
        return found[0].value

    def run(steps: int) -> None:
        value: Any = None
        for _ in range(steps):
            value = strategy.run(step)
        np.asarray(value)

    return run


def mean(_: Any, y: Any) -> Any:
    return y.mean()


def many_weights(count: int) -> Any:
    import keras

    class Chain(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            for i in range(count):
                self.add_weight(shape=(WIDTH, WIDTH), initializer="identity", name=f"link_{i}")

        def call(self, x: Any) -> Any:
            return functools.reduce(keras.ops.matmul, self.weights, x)

    return keras.Sequential([keras.Input((WIDTH,)), Chain()])


def fitter(strategy: Any, model: Callable[[], Any], batch: Any) -> Step:
    import keras

    with strategy.scope():
        built = model()
        built.compile(keras.optimizers.SGD(1e-3), mean)
    x, y = (np.concatenate([one] * MOST_STEPS) for one in batch)
    rows = len(batch[0])

    def run(steps: int) -> None:
        built.fit(x[: steps * rows], y[: steps * rows], batch_size=rows, shuffle=False, verbose=0)

    return run


def by_hand(count: int) -> Step:
    import jax
    import jax.numpy as jnp

    mesh = jax.make_mesh((2,), ("replica",), devices=jax.devices()[:2])
    whole, split = jax.NamedSharding(mesh, jax.P()), jax.NamedSharding(mesh, jax.P("replica"))
    weights = [jax.device_put(jnp.eye(WIDTH), whole) for _ in range(count)]
    x = jax.device_put(np.ones((8, WIDTH), np.float32), split)

    def step(weights: list, x: Any) -> tuple[list, Any]:
        loss, gradients = jax.value_and_grad(
            lambda weights: functools.reduce(jnp.matmul, weights, x).mean() / 2
        )(weights)
        loss, *gradients = jax.lax.psum([loss, *gradients], "replica")
        return [w - 1e-3 * g for w, g in zip(weights, gradients, strict=True)], loss

    specs = {"in_specs": (jax.P(), jax.P("replica")), "out_specs": jax.P(), "check_vma": False}
    compiled = jax.jit(jax.shard_map(step, mesh=mesh, **specs), donate_argnums=0)
    state = [weights]

    def run(steps: int) -> None:
        loss: Any = None
        for _ in range(steps):
            if loss is not None:
                loss.block_until_ready()
            state[0], loss = compiled(state[0], x)
        float(loss)

    return run


def all_reduce(quick: bool) -> Iterator[Made]:
    """One array on each device of this process, or of all processes, summed."""
    import jax

    devices = jax.devices()
    for n in (len(devices),) if jax.process_count() > 1 else REPLICAS[1:]:
        mesh = jax.make_mesh((n,), ("all",), devices=devices[:n])
        for size in SIZES[: 2 if quick else None]:
            yield words(n, "device"), size, functools.partial(summing, mesh, n, size)


def summing(mesh: Any, n: int, size: int) -> Step:
    import jax

    split = jax.P("all")
    total = jax.jit(
        jax.shard_map(
            lambda part: jax.lax.psum(part, "all"), mesh=mesh, in_specs=split, out_specs=split
        )
    )
    own = np.ones((jax.local_device_count() if jax.process_count() > 1 else n, size // 4), "f")
    rows = jax.make_array_from_process_local_data(jax.NamedSharding(mesh, split), own)

    def run(steps: int) -> None:
        for _ in range(steps):
            total(rows).block_until_ready()

    return run


# Parameter servers.


def tables(quick: bool) -> Iterator[Made]:
    """A table on a server, of which rows travel; and one that is mirrored, whose gradient does."""
    import keras

    import replicax as rx

    found = [1000] if quick else TABLES
    loss = keras.losses.BinaryCrossentropy(from_logits=True)

    def model(rows: int) -> Any:
        ids = keras.Input((10,), dtype="int32")
        layer = rx.layers.ShardedEmbedding(rows, 16, combiner="mean", embeddings_initializer="ones")
        return keras.Model(ids, keras.layers.Dense(1)(layer(ids)))

    def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(0)
        ids = random.integers(0, rows, (1024, 10)).astype("int32")
        return ids, np.ones((1024, 1), np.float32)

    def adagrad() -> Any:
        return keras.optimizers.Adagrad(0.01)

    for rows in [size for size in found if size <= 1_000_000]:
        mirror = functools.partial(trainer, mirrored(2), functools.partial(model, rows), data(rows))
        yield "mirrored, 2 replicas", rows, functools.partial(mirror, adagrad, loss)
    strategy = rx.ParameterServerStrategy(num_workers=1, num_ps=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    for rows in found:

        def make(rows: int = rows) -> Step:
            before = all_resident()
            with strategy.scope():
                built, optimizer = model(rows), adagrad()

            def step(ids: Any, y: Any) -> Any:
                value, gradients = rx.value_and_grad(lambda: loss(y, built(ids)), built)()
                optimizer.apply(gradients, built.trainable_variables)
                return value

            once, batch = rx.function(step), data(rows)

            def run(steps: int) -> None:
                for _ in range(steps):
                    coordinator.schedule(once, args=batch)
                coordinator.join()

            run(1)
            say(f"tables: {(all_resident() - before) / MB:,.0f} MB more in all processes")
            return run

        yield "1 parameter server, 1 worker", rows, make


def all_resident() -> float:
    """The memory of all processes of this curve, those of the cluster, too."""
    own, total = os.environ[MARK].encode(), 0.0
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if MARK.encode() + b"=" + own in environment.read_bytes():
                total += peak(environment.parent.name, "VmRSS")
    return total


# Workers: processes that wait for their turn.


def worker_points(quick: bool) -> Iterator[Made]:
    import replicax as rx

    strategy = rx.MultiWorkerMirroredStrategy()
    units = (784, 8 if quick else 512, 512, 10)
    step = functools.partial(trainer, strategy, lambda: dense(units))
    yield (
        "a step, 256 rows",
        strategy.num_replicas_in_sync,
        functools.partial(step, examples(256, 784)),
    )
    if strategy.num_replicas_in_sync > 1:
        yield from all_reduce(quick)


def serve_worker(told: dict[str, Any]) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ[ADDRESS])
        stream = connection.makefile("rw")
        works = {(side, str(x)): make for side, x, make in worker_points(told["quick"])}
        steps: dict[tuple[str, str], Step] = {}
        print(json.dumps(list(works)), file=stream, flush=True)
        for line in stream:
            order = json.loads(line)
            key, count = (order["side"], order["x"]), order["count"]
            step = steps.get(key) or steps.setdefault(key, works[key]())
            start = time.perf_counter()
            step(count)
            print(json.dumps((time.perf_counter() - start) / count), file=stream, flush=True)


def workers(rounds: int, quick: bool) -> list[Point]:
    """1, 2 and 4 processes, which live side by side and take turns."""
    points: list[tuple[Point, Callable[[int], float], int]] = []
    with contextlib.ExitStack() as stack:
        for n in WORKERS:
            told = {"curve": "workers", "quick": quick}
            run = [sys.executable, "-m", "replicax.launch", "run", "--workers", str(n)]
            command = [*run, "--grace", "2", __file__, "--serve", json.dumps(told)]
            group = stack.enter_context(Processes(words(n, "worker"), [(command, {})], n))
            for side, x in group.wait()[0]:

                def turn(
                    count: int, group: Processes = group, side: str = side, x: str = x
                ) -> float:
                    return max(group.tell(side=side, x=x, count=count))  # of the slowest

                trains = side.startswith("a step")
                curve, name = ("workers", side) if trains else ("all-reduce", f"{n} processes")
                turn(1)  # compiles
                count = max(1, min(MOST_STEPS, int(TURN_SECONDS / min(turn(2), turn(2)))))
                points.append((Point(curve, name, float(x)), turn, count))
                say(f"workers: {words(n, 'worker')}, {side}, {x}: {count} steps a turn")
        for number in range(rounds):
            for point, timed, steps in points[:: 1 if number % 2 else -1]:
                point.seconds.append(timed(steps))
    return [point for point, *_ in points]


CURVES: dict[str, Any] = {
    "replicas": replicas,
    "parameters": parameters,
    "variables": variables,
    "batch": batch,
    "all-reduce": all_reduce,
    "tables": tables,
    "workers": None,
}


def serve(told: dict[str, Any]) -> None:
    if told["curve"] == "workers":
        serve_worker(told)
        return
    found = measure(told["curve"], CURVES[told["curve"]](told["quick"]), told["rounds"])
    Path(told["file"]).write_text(json.dumps([asdict(point) for point in found]))


def run_curve(curve: str, rounds: int, quick: bool) -> list[Point]:
    if curve == "workers":
        return workers(rounds, quick)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "points.json")
        told = {"curve": curve, "file": str(file), "rounds": rounds, "quick": quick}
        environment = {
            **inherited(),
            "KERAS_BACKEND": "jax",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(max(REPLICAS)),
            "NPROC": str(2 * max(REPLICAS)),
            "RX_COMPILATION_CACHE": "off",  # what compiling takes is measured, too
            MARK: folder,
        }
        command = [sys.executable, __file__, "--serve", json.dumps(told)]
        subprocess.run(command, env=environment, check=True)
        return [Point(**one) for one in json.loads(file.read_text())]


# What comes out.

TITLES = {
    "replicas": ("replicas", "MLP 784-512-512-10, 256 rows of all replicas together"),
    "workers": ("workers", "MLP 784-512-512-10, 256 rows of all workers together"),
    "parameters": ("parameters", "MLP 256-h-h-10, 32 rows, SGD"),
    "variables": ("variables", "this many weights of 16 × 16, one after the other, 8 rows, SGD"),
    "batch": ("rows of a batch", "MLP 784-512-512-10, SGD"),
    "all-reduce": ("bytes", "one array on each, summed"),
    "tables": ("rows of the table", "of 16 numbers; 1024 × 10 ids, Adagrad"),
}
FACTS = {  # what is worth a column, by curve
    "variables": ("trace s", "compile s", "first step s"),
    "parameters": ("first step s", "peak MB"),
    "tables": ("made s", "first step s"),
}


def sides(points: list[Point]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(point.side, []).append(point)
    return {side: sorted(group, key=lambda point: point.x) for side, group in found.items()}


def growth(points: list[Point]) -> Iterator[str]:
    """Between a point and the one before it: k, where the time grows as x to the power of k."""
    yield ""
    for one, two in zip(points, points[1:], strict=False):
        yield f"{np.log(two.median / one.median) / np.log(two.x / one.x):.2f}"


def table(curve: str, points: list[Point]) -> str:
    unit, what = TITLES[curve]
    facts = FACTS.get(curve, ())
    headers = ["", unit, "ms", "lowest to highest", "grows as", *facts]
    lines = [f"**{curve}**: {what}", "", f"| {' | '.join(headers)} |"]
    lines.append(f"|---|{'--:|' * (len(headers) - 1)}")
    for side, group in sides(points).items():
        name = side
        for point, power in zip(group, growth(group), strict=True):
            low, high = min(point.seconds), max(point.seconds)
            power = power and f"x^{power}"
            cells = [name, f"{point.x:,.0f}", f"{1e3 * point.median:,.3g}"]
            cells += [f"{1e3 * low:,.3g} to {1e3 * high:,.3g}", power]
            lines.append(f"| {' | '.join([*cells, *(f'{point.facts[f]:,.3g}' for f in facts)])} |")
            name = ""
    return "\n".join(lines)


def host(points: list[Point]) -> str:
    """A step of n variables as a + b·n, by least squares of the relative errors."""
    lines = ["| | ms a step | µs a variable | error |", "|---|--:|--:|--:|"]
    for side, group in sides(points).items():
        seconds = np.array([point.median for point in group])
        counts = np.array([(1.0, point.x) for point in group]) / seconds[:, None]
        (fixed, each), *_ = np.linalg.lstsq(counts, np.ones(len(group)))
        error = np.median(np.abs(counts @ (fixed, each) - 1))
        lines.append(f"| {side} | {1e3 * fixed:.3g} | {1e6 * each:.3g} | {error:.0%} |")
    return "\n".join(lines)


def markdown(points: list[Point]) -> str:
    parts = [f"{platform.machine()}, {os.cpu_count()} cores; medians of interleaved turns"]
    for curve in CURVES:
        found = [point for point in points if point.curve == curve]
        if not found:
            continue
        parts.append(table(curve, found))
        if curve == "variables" and len(found) > 6:
            parts.append(host(found))
    return "\n\n".join(parts) + "\n"


def draw(points: list[Point], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    present = [curve for curve in CURVES if any(point.curve == curve for point in points)]
    columns = min(4, len(present))
    figure = Figure(figsize=(3.6 * columns, 3.2 * -(-len(present) // columns)))
    panels = np.ravel(figure.subplots(-(-len(present) // columns), columns, squeeze=False))
    for axes, curve in zip(panels, present, strict=False):
        for side, group in sides([point for point in points if point.curve == curve]).items():
            x = [point.x for point in group]
            middle = [1e3 * point.median for point in group]
            spread = [[1e3 * pick(point.seconds) for point in group] for pick in (min, max)]
            (line,) = axes.plot(x, middle, "o-", markersize=3, linewidth=1, label=side)
            axes.fill_between(x, *spread, alpha=0.2, color=line.get_color(), linewidth=0)
        scale = "linear" if curve in ("replicas", "workers") else "log"
        axes.set(xscale=scale, yscale=scale, title=curve, xlabel=TITLES[curve][0], ylabel="ms")
        axes.legend(fontsize=6, frameon=False)
        axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    for axes in panels[len(present) :]:
        axes.set_visible(False)
    figure.tight_layout()
    FigureCanvasAgg(figure)
    figure.savefig(file, dpi=110)


def kept(file: Path | None, measured: set[str]) -> list[Point]:
    """The curves of an earlier run that were not measured again."""
    if not file or not file.exists():
        return []
    earlier = [Point(**one) for one in json.loads(file.read_text())["points"]]
    return [point for point in earlier if point.curve not in measured]


def main() -> None:
    options = parse()
    if options.serve:
        serve(json.loads(options.serve))
        return
    end_cleanly_on_signals()
    found: list[Point] = []
    for curve in options.only:
        start = time.monotonic()
        rounds = 1 if options.quick else options.rounds
        found += run_curve(curve, rounds, options.quick)
        say(f"{curve}: {time.monotonic() - start:.0f} s")
    # Several processes add to the all-reduces: they are the workers' part of that curve.
    measured = {point.curve for point in found}
    if options.only == ("workers",):
        mine = [p for p in kept(options.json, {"workers"}) if "processes" not in p.side]
        found += [point for point in mine if point.curve == "all-reduce"]
    found += kept(options.json, measured)
    text = markdown(found)
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        data = {"cores": os.cpu_count(), "points": [asdict(point) for point in found]}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    if options.plot:
        draw(found, options.plot / "scale.png")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
