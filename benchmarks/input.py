"""Rows per second through the pipelines of Replicax, tf.data and Grain, and the memory of one.

All sides read the same images and lines, epoch by epoch in turn, so that what else the machine
does meets all of them; medians are compared, and the contents must agree. TensorFlow runs in a
process of its own, which is told by a pipe to read one epoch, and is idle meanwhile.

    python benchmarks/input.py --tensorflow /path/to/python/with/tensorflow --plot input.png
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from harness.output import spread

SHAPE = (32, 32, 3)  # of CIFAR-10's images
SCALE = np.float32(1 / 255)
LINES_PER_IMAGE = 20  # lines are short: as many as take about as long
COLUMNS = 20  # of the table
STEP = 5e-3  # seconds that a step computes
AIM_MB = 500  # of memory for a data set of any size
CORES = os.cpu_count() or 1
Pipelines = Mapping[str, Mapping[str, Iterable]]  # by side and case


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--images", type=int, default=10_000, help="per epoch (default 10000)")
    parser.add_argument("--batch-size", type=int, default=128, help="images a batch (default 128)")
    parser.add_argument("--rounds", type=int, default=9, help="epochs of each side (default 9)")
    parser.add_argument("--replicas", type=int, default=2, help="virtual devices (default 2)")
    parser.add_argument("--gigabytes", type=float, default=4, help="file to stream (default 4)")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument(
        "--tensorflow", metavar="PYTHON", help="has TensorFlow (default: this one, if it has)"
    )
    parser.add_argument("--quick", action="store_true", help="little of everything: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measurements")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw them, as PNG")
    parser.add_argument("--serve", help=argparse.SUPPRESS)  # as the child of `Child`
    parser.add_argument("--stream", help=argparse.SUPPRESS)  # as the child of `memory`
    options = parser.parse_args()
    if options.quick:
        options.images, options.rounds = 500, 1
        options.gigabytes = min(options.gigabytes, 0.02)
    return options


@dataclass(frozen=True)
class Data:
    """What all sides read. Another process makes the same arrays, and finds the same files.

    Args:
        folder: Where the files are.
        images: How many there are.
        batch_size: How many are a batch.
    """

    folder: str
    images: int
    batch_size: int

    @cached_property
    def uint8(self) -> np.ndarray:
        return np.random.default_rng(0).integers(0, 256, (self.images, *SHAPE), np.uint8)

    @cached_property
    def float32(self) -> np.ndarray:
        return self.uint8 * SCALE

    @property
    def records(self) -> str:
        return os.path.join(self.folder, "images.tfrecord")

    @property
    def array_records(self) -> str:
        return os.path.join(self.folder, "images.array_record")

    @property
    def jpegs(self) -> list[bytes]:
        """Photographs, so to say: one for 50 images, as each takes about as long."""
        import io

        from PIL import Image

        found = []
        for image in self.uint8[::50]:
            file = io.BytesIO()
            Image.fromarray(image).resize((500, 375)).save(file, "jpeg", quality=90)
            found.append(file.getvalue())
        return found

    @property
    def jpeg_records(self) -> str:
        return os.path.join(self.folder, "jpegs.tfrecord")

    @property
    def examples(self) -> str:
        return os.path.join(self.folder, "examples.tfrecord")

    @property
    def table(self) -> str:
        return os.path.join(self.folder, "table.csv")

    @property
    def text(self) -> str:
        return os.path.join(self.folder, "lines.txt")

    def write(self) -> None:
        """Write the files."""
        import replicax as rx

        images = [image.tobytes() for image in self.uint8]
        with rx.data.TFRecordWriter(self.records) as writer:
            for image in images:
                writer.write(image)
        rows = np.random.default_rng(1).random((self.images, COLUMNS), np.float32)
        with rx.data.TFRecordWriter(self.jpeg_records) as writer:
            for jpeg in self.jpegs:
                writer.write(jpeg)
        with rx.data.TFRecordWriter(self.examples) as writer:
            for row in rows:
                named = {f"c{i}": value for i, value in enumerate(row)}
                writer.write(rx.data.make_example(named))
        np.savetxt(self.table, rows, fmt="%.6f", delimiter=",")
        if importlib.util.find_spec("array_record"):
            from array_record.python.array_record_module import ArrayRecordWriter

            writer = ArrayRecordWriter(self.array_records, "group_size:1")
            for image in images:
                writer.write(image)
            writer.close()
        lines = (f"{i} " + "rows " * (i % 20) for i in range(LINES_PER_IMAGE * self.images))
        Path(self.text).write_text("\n".join(lines))


def of_tensorflows_names(tf: Any, data: Data) -> dict[str, Iterable]:
    """Pipelines of `tf.data` and `tf.io`, which are the same program on both sides."""
    auto, size = tf.data.AUTOTUNE, data.batch_size
    names = [f"c{i}" for i in range(COLUMNS)]
    features = {name: tf.io.FixedLenFeature([], tf.float32) for name in names}

    def decode(record: Any) -> Any:
        return tf.image.resize(tf.io.decode_jpeg(record, channels=3), (224, 224))

    def colors(image: Any) -> Any:
        image = tf.image.convert_image_dtype(tf.image.flip_left_right(image), tf.float32)
        image = tf.image.adjust_contrast(tf.image.adjust_brightness(image, 0.1), 1.2)
        return tf.image.adjust_hue(tf.image.adjust_saturation(image, 0.8), 0.1)

    def columns(records: Any) -> Any:
        parsed = tf.io.parse_example(records, features)
        return sum(parsed[name] for name in names)

    images = tf.data.Dataset.from_tensor_slices(data.uint8)
    jpegs = tf.data.TFRecordDataset(data.jpeg_records)
    rows = tf.data.experimental.CsvDataset(data.table, [0.0] * COLUMNS)
    return {
        "JPEG, decode and resize": jpegs.map(decode, num_parallel_calls=auto).batch(size),
        "tf.image, colors": images.map(colors, num_parallel_calls=auto).batch(size),
        "parse_example": tf.data.TFRecordDataset(data.examples).batch(size).map(columns),
        "CSV": rows.batch(size).map(lambda *parts: sum(parts)),
    }


# The functions of the pipelines, for Replicax and Grain alike.


def augment(image: np.ndarray) -> np.ndarray:
    return SCALE * image[:, ::-1]


def scale(images: np.ndarray) -> np.ndarray:
    return SCALE * images


def image_of(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.uint8).reshape(SHAPE)


def images_of(records: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(records), np.uint8).reshape(-1, *SHAPE)


def of_replicax(data: Data) -> Pipelines:
    import jax

    import replicax as rx
    import replicax.tf as tf

    size = data.batch_size
    rows = rx.data.Dataset.from_tensor_slices(data.uint8).shuffle(data.images)
    floats = rx.data.Dataset.from_tensor_slices(data.float32).shuffle(data.images)
    records = rx.data.TFRecordDataset(data.records)
    cases = {
        "uint8 arrays": rows.batch(size),
        "float32 arrays": floats.batch(size),
        "element map": rows.map(augment).batch(size),
        "element map, AUTOTUNE": rows.map(augment, rx.data.AUTOTUNE).batch(size),
        "element map, threads": rows.map(augment, num_parallel_calls=CORES).batch(size),
        "batch map": rows.batch(size).map(scale),
        "batch map, jitted": rows.batch(size).map(jax.jit(scale)),
        "TFRecord, element map": records.map(image_of).batch(size),
        "TFRecord, batch map": records.batch(size).map(images_of),
        "text lines": rx.data.TextLineDataset(data.text).batch(size),
        **of_tensorflows_names(tf, data),
    }
    return {"replicax": {name: case.prefetch(rx.data.AUTOTUNE) for name, case in cases.items()}}


class Batches:
    """A source whose elements are whole batches: the quickest that Grain can be given."""

    def __init__(self, images: np.ndarray, size: int) -> None:
        self._images = images
        self._size = size
        self._order = np.random.default_rng(0).permutation(len(images))

    def __len__(self) -> int:
        return -(-len(self._images) // self._size)

    def __getitem__(self, index: int) -> np.ndarray:
        return self._images[self._order[index * self._size : (index + 1) * self._size]]


def of_grain(data: Data) -> Pipelines:
    """As Grain's pages recommend: `MapDataset`, batched, then read by its 16 threads."""
    import grain
    import jax

    size, jitted = data.batch_size, jax.jit(scale)
    rows = grain.MapDataset.source(data.uint8).shuffle(seed=0)
    floats = grain.MapDataset.source(data.float32).shuffle(seed=0)
    batches = grain.MapDataset.source(Batches(data.uint8, size))
    float_batches = grain.MapDataset.source(Batches(data.float32, size))
    records = grain.experimental.TFRecordIterDataset(data.records)

    def ahead(dataset: grain.IterDataset) -> grain.IterDataset:
        return grain.experimental.ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=2)

    by_row = {
        "uint8 arrays": rows.batch(size),
        "float32 arrays": floats.batch(size),
        "element map, AUTOTUNE": rows.map(augment).batch(size),
        "batch map": rows.batch(size).map(scale),
        "batch map, jitted": rows.batch(size).map(jitted),
    }
    by_batch = {
        "uint8 arrays": batches,
        "float32 arrays": float_batches,
        "batch map": batches.map(scale),
        "batch map, jitted": batches.map(jitted),
    }
    inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    threads = grain.ReadOptions(num_threads=CORES)
    sides = {
        "grain": {
            **{name: case.to_iter_dataset() for name, case in by_row.items()},
            "element map, threads": rows.map(augment).batch(size).to_iter_dataset(threads),
            "element map": rows.map(augment).batch(size).to_iter_dataset(inline),
            "TFRecord, element map": ahead(records.map(image_of).batch(size)),
            "TFRecord, batch map": ahead(records.batch(size, batch_fn=images_of)),
        },
        "grain, batches": {name: case.to_iter_dataset() for name, case in by_batch.items()},
    }
    if os.path.exists(data.array_records):
        stored = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(data.array_records))
        sides["grain, ArrayRecord"] = {
            "TFRecord, element map": stored.map(image_of).batch(size).to_iter_dataset(),
            "TFRecord, batch map": stored.batch(size, batch_fn=images_of).to_iter_dataset(),
        }
    return sides


def of_tensorflow(data: Data) -> Pipelines:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import tensorflow as tf

    size, auto = data.batch_size, tf.data.AUTOTUNE
    rows = tf.data.Dataset.from_tensor_slices(data.uint8).shuffle(data.images)
    floats = tf.data.Dataset.from_tensor_slices(data.float32).shuffle(data.images)
    records = tf.data.TFRecordDataset(data.records)

    def augment(image: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.reverse(image, [1]), tf.float32) * SCALE

    def scale(images: tf.Tensor) -> tf.Tensor:
        return tf.cast(images, tf.float32) * SCALE

    def decode(records: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
        return tf.reshape(tf.io.decode_raw(records, tf.uint8), shape)

    cases = {
        "uint8 arrays": rows.batch(size),
        "float32 arrays": floats.batch(size),
        "element map": rows.map(augment).batch(size),
        "element map, AUTOTUNE": rows.map(augment, num_parallel_calls=auto).batch(size),
        "element map, threads": rows.map(augment, num_parallel_calls=CORES).batch(size),
        "batch map": rows.batch(size).map(scale, num_parallel_calls=auto),
        "batch map, jitted": rows.batch(size).map(tf.function(scale, jit_compile=True)),
        "TFRecord, element map": records.map(lambda record: decode(record, SHAPE)).batch(size),
        "TFRecord, batch map": records.batch(size).map(lambda batch: decode(batch, (-1, *SHAPE))),
        "text lines": tf.data.TextLineDataset(data.text).batch(size),
        **of_tensorflows_names(tf, data),
    }
    return {"tf.data": {name: case.prefetch(auto) for name, case in cases.items()}}


@dataclass(frozen=True)
class Epoch:
    """What reading a data set once took, and gave."""

    rows: int
    seconds: float
    contents: float | None = None


def read(pipeline: Iterable, *, look: bool) -> Epoch:
    """One epoch; with `look`, what is in it is summed up, and the time means nothing."""
    rows, contents, start = 0, 0.0, time.perf_counter()
    for batch in pipeline:
        if hasattr(batch, "block_until_ready"):
            batch.block_until_ready()
        rows += len(batch)
        if look:
            contents += content_of(np.asarray(batch))
    return Epoch(rows, time.perf_counter() - start, contents if look else None)


def content_of(batch: np.ndarray) -> float:
    if batch.dtype == object:
        return float(sum(map(len, batch)))
    return float(batch.sum(dtype=np.float64))


Side = Callable[..., Epoch]  # (case, look=…) -> one epoch


def sides_here(pipelines: Pipelines) -> dict[str, dict[str, Side]]:
    """By case, then by side."""
    found: dict[str, dict[str, Side]] = {}
    for side, cases in pipelines.items():
        for case in cases:
            found.setdefault(case, {})[side] = lambda case, look, of=cases: read(
                of[case], look=look
            )
    return found


class Child:
    """The tf.data side, in another process and perhaps of another Python."""

    def __init__(self, python: str, data: Data) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [python, __file__, "--serve", json.dumps(asdict(data))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.cases = self._answer()

    def __call__(self, case: str, *, look: bool) -> Epoch:
        print(json.dumps([case, look]), file=self._process.stdin, flush=True)
        return Epoch(**self._answer())

    def _answer(self) -> Any:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise SystemExit(f"the TensorFlow side ended: {self._errors.read()[-2000:]}")
        return json.loads(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()  # which ends its input, and so itself


def serve(data: Data) -> None:
    """The other end of `Child`."""
    (cases,) = of_tensorflow(data).values()
    print(json.dumps(list(cases)), flush=True)
    for line in sys.stdin:
        case, look = json.loads(line)
        print(json.dumps(asdict(read(cases[case], look=look))), flush=True)


@contextlib.contextmanager
def all_sides(options: argparse.Namespace, data: Data) -> Iterator[dict[str, dict[str, Side]]]:
    """By case, then by side; Replicax first."""
    pipelines = dict(of_replicax(data))
    if importlib.util.find_spec("grain"):
        pipelines |= of_grain(data)
    sides = sides_here(pipelines)
    python = options.tensorflow or (importlib.util.find_spec("tensorflow") and sys.executable)
    with contextlib.ExitStack() as stack:
        if python:
            child = stack.enter_context(Child(python, data))
            for case in child.cases:
                sides[case]["tf.data"] = child
        yield {case: found for case, found in sides.items() if options.only in case}


def progress() -> Any:
    """A bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def measure(
    options: argparse.Namespace, sides: dict[str, dict[str, Side]]
) -> dict[str, dict[str, list[float]]]:
    """Rows per second by case and side, per round; the sides of a case in turn."""
    rates: dict[str, dict[str, list[float]]] = {}
    with progress() as bar:
        total = sum(map(len, sides.values())) * (options.rounds + 1)
        task = bar.add_task("", total=total)
        for case, found in sides.items():
            bar.update(task, description=case)
            looks = {}
            for name, side in found.items():
                looks[name] = side(case, look=True)  # compiles, too
                bar.advance(task)
            check(case, looks)
            rates[case] = {name: [] for name in found}
            for turn in range(options.rounds):
                for name in list(found)[:: 1 if turn % 2 else -1]:
                    epoch = found[name](case, look=False)
                    rates[case][name].append(epoch.rows / epoch.seconds)
                    bar.advance(task)
    return rates


def check(case: str, looks: dict[str, Epoch]) -> None:
    """All sides must have done the same work."""
    found = {name: (epoch.rows, epoch.contents) for name, epoch in looks.items()}
    rows, contents = found["replicax"]
    least = 1e-2 if "JPEG" in case else 1e-4  # decoders differ by a few steps
    if any(r != rows or abs(c - contents) > least * contents for r, c in found.values()):
        raise SystemExit(f"the sides of {case!r} read different contents: {found}")


def show(options: argparse.Namespace, rates: dict[str, dict[str, list[float]]]) -> None:
    print(
        f"{options.images} images, batches of {options.batch_size}, {options.rounds} rounds, "
        f"{CORES} cores"
    )
    print(f"{'':22}{'':20}{'1000 rows/s':>11}  {'':16}{'replicax is × as fast':>22}")
    for case, found in rates.items():
        title = case
        for name, values in found.items():
            middle, extent = spread(value / 1e3 for value in values)
            line = f"{title:22}{name:20}{middle:11.1f}  {extent:16}"
            title = ""
            if name != "replicax":
                ratios = (a / b for a, b in zip(found["replicax"], values, strict=True))
                ratio, extent = spread(ratios)
                line += f"{ratio:8.2f}  ({extent})"
            print(line)


def distributed(options: argparse.Namespace, data: Data) -> dict[str, Any]:
    """What cutting batches and putting them on devices costs, and what a step waits for."""
    import jax

    import replicax as rx

    strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(options.replicas)])
    found: dict[str, Any] = {"rows_per_second": {}, "waits": {}}
    for name, images in {"uint8": data.uint8, "float32": data.float32}.items():
        plain = rx.data.Dataset.from_tensor_slices(images).shuffle(data.images)
        plain = plain.batch(data.batch_size)
        spread_out = strategy.experimental_distribute_dataset(plain)
        sides = {"host": plain.prefetch(rx.data.AUTOTUNE), "devices": spread_out}
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for turn in range(options.rounds + 1):
            for side, dataset in sides.items():
                start = time.perf_counter()
                for batch in dataset:
                    jax.block_until_ready(batch)
                if turn:
                    rates[side].append(data.images / (time.perf_counter() - start))
        found["rows_per_second"][name] = rates
    rows = rx.data.Dataset.from_tensor_slices(data.uint8).shuffle(data.images).map(augment)
    batches = rows.batch(data.batch_size)
    for name, ahead in {"read ahead": 1, "not read ahead": 0}.items():
        settings = rx.InputOptions(experimental_per_replica_buffer_size=ahead)
        dataset = strategy.experimental_distribute_dataset(batches, settings)
        found["waits"][name] = waits(dataset, options.rounds)
    return found


def waits(dataset: Iterable, epochs: int) -> list[float]:
    """Seconds that each step waited for its batch; the first of an epoch has to."""
    found = []
    for _ in range(epochs):
        iterator = iter(dataset)
        next(iterator)
        while True:
            time.sleep(STEP)  # an accelerator computes, and leaves the processor alone
            start = time.perf_counter()
            if next(iterator, None) is None:
                break
            found.append(time.perf_counter() - start)
    return found


def show_distributed(options: argparse.Namespace, found: dict[str, Any]) -> None:
    print(f"\non {options.replicas} devices of a MirroredStrategy, 1000 rows/s")
    for name, rates in found["rows_per_second"].items():
        (host, _), (devices, extent) = (
            spread(value / 1e3 for value in values) for values in rates.values()
        )
        print(f"{name:22}{'':20}{devices:11.1f}  {extent:16}{devices / host:8.2f} of not placed")
    print(f"\nms that a step of {1e3 * STEP:g} ms waits for its batch, element map")
    for name, seconds in found["waits"].items():
        middle, extent = spread(1e3 * second for second in seconds)
        late = statistics.quantiles(seconds, n=20)[-1] * 1e3
        print(f"{name:42}{middle:11.3f}  ({extent}), one in twenty over {late:.3f}")


def memory(options: argparse.Namespace) -> dict[str, float]:
    """Stream a file of records in a child, which says how much memory it took."""
    import replicax as rx

    block = np.random.default_rng(0).bytes(2**24)
    size = int(np.prod(SHAPE))
    count = int(options.gigabytes * 1e9 / size)
    starts = np.random.default_rng(1).integers(0, len(block) - size, count).tolist()
    with tempfile.TemporaryDirectory() as folder, progress() as bar:
        path = os.path.join(folder, "large.tfrecord")
        with rx.data.TFRecordWriter(path) as writer:
            for start in bar.track(starts, description=f"writing {options.gigabytes} GB"):
                writer.write(block[start : start + size])
        bar.add_task("streaming it", total=None)
        size_option = ["--batch-size", str(options.batch_size)]
        done = subprocess.run(
            [sys.executable, __file__, "--stream", path, *size_option],
            stdout=subprocess.PIPE,
            check=True,
        )
    found = json.loads(done.stdout)
    if found["rows"] != count:
        raise SystemExit(f"{count} records were written, {found['rows']} read")
    return {"gigabytes": options.gigabytes, **found}


def stream(path: str, batch_size: int) -> None:
    """The child of `memory`."""
    import replicax as rx

    records = rx.data.TFRecordDataset(path).map(image_of).shuffle(10_000)
    before = peak_megabytes()
    epoch = read(records.batch(batch_size).prefetch(rx.data.AUTOTUNE), look=False)
    found = {"rows": epoch.rows, "rows_per_second": epoch.rows / epoch.seconds}
    print(json.dumps({**found, "megabytes_before": before, "megabytes": peak_megabytes()}))


def peak_megabytes() -> float:
    """This process' own: `ru_maxrss` would be that of the process which started it, if larger."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def show_memory(found: dict[str, float]) -> None:
    print(
        f"\n{found['gigabytes']:g} GB of TFRecord, shuffled in a buffer of 10000 and batched: "
        f"{found['rows_per_second'] / 1e3:.0f} thousand rows/s;\npeak memory "
        f"{found['megabytes']:.0f} MB, {found['megabytes_before']:.0f} MB of it before the first "
        f"row (aim: below {AIM_MB} MB)"
    )


def plot(rates: dict[str, dict[str, list[float]]], file: Path) -> None:
    """Bars by case, with the range of the rounds."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    names = list(dict.fromkeys(name for found in rates.values() for name in found))
    figure = Figure(figsize=(9, 1 + 0.28 * sum(map(len, rates.values()))), layout="constrained")
    axes = figure.subplots()
    place, ticks = 0.0, []
    for found in rates.values():
        ticks.append(place + (len(found) - 1) / 2)
        for name, values in found.items():
            middle = statistics.median(values)
            ends = [[middle - min(values)], [max(values) - middle]]
            color = f"C{names.index(name)}"
            axes.barh(place, middle, color=color, xerr=ends, ecolor="0.4")
            place += 1
        place += 0.7
    axes.set_yticks(ticks, rates)
    axes.set_ylim(place, -1.5)
    axes.set_xscale("log")
    axes.set_xlabel("rows per second, median and range of the rounds")
    bars = [Patch(color=f"C{number}") for number in range(len(names))]
    figure.legend(bars, names, loc="outside upper center", ncols=len(names), frameon=False)
    figure.savefig(file, dpi=150)


def main() -> None:
    options = parse()
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(options.replicas))
    os.environ["KERAS_BACKEND"] = "jax"
    if options.serve:
        serve(Data(**json.loads(options.serve)))
        return
    if options.stream:
        stream(options.stream, options.batch_size)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Data(folder, options.images, options.batch_size)
        data.write()
        with all_sides(options, data) as sides:
            rates = measure(options, sides)
        show(options, rates)
        results: dict[str, Any] = {"rows_per_second": rates}
        if not options.only:
            results["distributed"] = distributed(options, data)
            show_distributed(options, results["distributed"])
    if options.gigabytes and not options.only:
        results["memory"] = memory(options)
        show_memory(results["memory"])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    if options.plot:
        plot(rates, options.plot)


if __name__ == "__main__":
    main()
