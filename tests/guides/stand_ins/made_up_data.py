"""Small data in the shapes of known sets: for pictures a noisy pattern for each of ten classes."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import wave
from pathlib import Path

import numpy as np

TRAIN, TEST = 512, 128


def pictures(
    count: int, shape: tuple[int, ...], seed: int, classes: int = 10
) -> tuple[np.ndarray, np.ndarray]:
    patterns = np.random.default_rng(0).integers(0, 200, (classes, *shape), "uint8")
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    images = patterns[labels] + random.integers(0, 56, (count, *shape), "uint8")
    return images, labels.astype("uint8")


def mnist(path=None, train=TRAIN, test=TEST):
    return pictures(train, (28, 28), 1), pictures(test, (28, 28), 2)


def cifar10(label_mode="fine", train=TRAIN, test=TEST):
    (x, y), (test_x, test_y) = pictures(train, (32, 32, 3), 1), pictures(test, (32, 32, 3), 2)
    return (x, y[:, None]), (test_x, test_y[:, None])


def photos():
    """Few, of two classes and 64 pixels a side."""
    return pictures(32, (64, 64, 3), 1, 2), pictures(8, (64, 64, 3), 2, 2)


def reviews(num_words=1000, **_options):
    """Sentences of two classes, as numbers of words, of several lengths."""

    def part(count, seed):
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, count)
        lengths = random.integers(5, 40, count)
        words = [
            list(random.integers(1, 500, length) + 400 * int(label))
            for length, label in zip(lengths, labels, strict=True)
        ]
        return np.array(words, dtype=object), labels

    return part(500, 1), part(100, 2)


def houses(**_options):
    random = np.random.default_rng(0)
    x = random.normal(size=(TRAIN + TEST, 13)).astype("float32")
    y = x.sum(1) + 20
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN:], y[TRAIN:])


def downloaded(fname=None, origin=None, **_options) -> str:
    """Where `get_file` would put a file: what is made up is beside it."""
    return str(Path("downloads", fname or origin.rpartition("/")[2]).absolute())


def install(tf, train: int = TRAIN, test: int = TEST) -> None:
    """What `tf.keras.datasets` would download is made here, with few rows."""
    datasets = tf.keras.datasets
    digits = functools.partial(mnist, train=train, test=test)
    objects = functools.partial(cifar10, train=min(train, 50_000), test=test)
    datasets.mnist.load_data = datasets.fashion_mnist.load_data = digits
    datasets.cifar10.load_data = datasets.cifar100.load_data = objects
    datasets.imdb.load_data = reviews
    datasets.boston_housing.load_data = houses
    with contextlib.suppress(ImportError):
        import pandas

        read = pandas.read_csv
        pandas.read_csv = lambda source, **options: read(
            downloaded(origin=source) if str(source).startswith("http") else source, **options
        )


def ratings() -> str:
    """Thirty users who have seen twenty films each, as MovieLens writes it."""
    random = np.random.default_rng(0)
    seen = [(user, film) for user in range(1, 31) for film in random.permutation(40)[:20] + 1]
    return "".join(f"{user}::{film}::{1 + film % 5}::{film}\n" for user, film in seen)


def records(path: Path, examples: list[dict]) -> None:
    """A file of `tf.train.Example`s: lists of integers, or bytes."""
    import replicax.tf as tf

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for example in examples:
            features = {name: feature(value) for name, value in example.items()}
            message = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(message.SerializeToString())


def sentences(seed: int) -> list[dict]:
    """Sixteen rows of numbers of words, and the same a word later."""
    random = np.random.default_rng(seed)
    rows = [list(map(int, random.integers(5, 400, random.integers(8, 20)))) for _ in range(16)]
    return [{"inputs": row[:-1], "targets": row[1:]} for row in rows]


def admissions(_path: Path) -> str:
    """Seventy figures of twenty patients, at several times."""
    random = np.random.default_rng(0)
    lines = [",".join(["admissionid", "time", *(f"f{n}" for n in range(70))])]
    for patient in range(20):
        for time in range(random.integers(6, 15)):
            figures = ",".join(f"{value:.4f}" for value in random.normal(size=70))
            lines.append(f"{patient},{time},{figures}")
    return "\n".join(lines) + "\n"


def talk(path: Path) -> str:
    """A file of the Cornell movie dialogs: lines, or which follow each other."""
    between, letters = " +++$+++ ", "abcdefghijklm"
    words = [first + second for first in letters for second in letters]
    random = np.random.default_rng(0)
    names = [f"L{number}" for number in range(64)]
    if "conversations" in path.name:
        return between.join(("u0", "u1", "m0", str(names))) + "\n"
    texts = (" ".join(random.choice(words, 5)) for _ in names)
    return "".join(
        between.join((n, "u0", "m0", "ANN", t)) + "\n" for n, t in zip(names, texts, strict=True)
    )


def translations(_path: Path) -> str:
    """Sentences of three to eight words, and the same words spelled backward."""
    random, letters = np.random.default_rng(0), "abcdefghijklm"
    words = [first + second for first in letters for second in letters]
    texts = [" ".join(random.choice(words, random.integers(3, 9))) for _ in range(400)]
    return "".join(f"{text}\t{text[::-1]}\n" for text in texts)


def transcripts(_path: Path) -> str:
    return "".join(f"{number}|Say {number}.|say number {number}\n" for number in range(8))


def boxes(path: Path) -> str:
    """Eight pictures with two boxes each: corners, and a class."""
    pictures = path.parents[2] / "pictures"
    lines = (f"{pictures / str(n)}.jpg 20,30,120,150,{n} 200,210,380,330,3\n" for n in range(8))
    return "".join(lines)


def forests(_path: Path) -> bytes:
    """Two thousand rows of the Covertype set: numbers, two choices as ones, the kind of trees."""
    random = np.random.default_rng(0)
    kinds = random.integers(0, 7, 2000)
    numbers = random.integers(0, 3000, (2000, 10)) + 500 * kinds[:, None]
    areas, soils = (
        np.eye(4, dtype=int)[kinds % 4],
        np.eye(40, dtype=int)[random.permutation(2000) % 40],
    )
    rows = np.concatenate([numbers, areas, soils, kinds[:, None] + 1], axis=1)
    return gzip.compress("\n".join(",".join(map(str, row)) for row in rows).encode())


def encoded(image: np.ndarray, form: str) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(image).save(file, form)
    return file.getvalue()


def rays(path: Path) -> None:
    """Pictures as JPEGs, or in another file their paths, of two classes."""
    import replicax.tf as tf

    images, labels = pictures(4300, (16, 16, 3), 1, 2)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            name = f"train/{('NORMAL', 'PNEUMONIA')[label]}/{number}.jpeg"
            writer.write(encoded(image, "jpeg") if "images" in path.name else name.encode())


def png_pairs(path: Path) -> None:
    """Pictures, and the same four times as small."""
    images = pictures(32, (160, 160, 3), 1)[0]
    names = ("image/img_name", "image/hr_encoded", "image/lr_encoded")
    values = [(b"a", encoded(one, "png"), encoded(one[::4, ::4], "png")) for one in images]
    records(path, [dict(zip(names, value, strict=True)) for value in values])


def sounds(path: Path) -> None:
    """Eight tones of half a second to a second, as 16-bit WAV files."""
    for number in range(8):
        with wave.open(str(path).format(number), "wb") as file:
            file.setparams((1, 2, 22050, 0, "NONE", ""))
            seconds = np.arange(11025 + 1000 * number) / 22050
            tone = np.sin(2 * np.pi * 200 * (number + 1) * seconds)
            file.writeframes((20_000 * tone).astype("<i2").tobytes())


def write(path: Path, kind: str) -> None:
    """Write made-up files.

    Args:
        path: Where; in its `{}` there are the numbers of eight files.
        kind: A function of this module that writes them or returns their text, "ratings",
            "sentences" in eight files, "records CHANNELSxHEIGHTxWIDTH" of pictures in one, or
            eight "pictures HEIGHTxWIDTH".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    made = ("admissions", "boxes", "forests", "png pairs", "rays", "sounds")
    if kind in (*made, "transcripts", "translations"):
        found = globals()[kind.replace(" ", "_")](path)
        if found is not None:
            path.write_bytes(found.encode() if isinstance(found, str) else found)
        return
    if kind in ("ratings", "talk"):
        path.write_text(ratings() if kind == "ratings" else talk(path))
        return
    if kind == "sentences":
        for number in range(8):
            records(Path(str(path).format(number)), sentences(number))
        return
    kind, _, sizes = kind.partition(" ")
    if kind == "records":
        shape = tuple(map(int, sizes.split("x")))
        images = pictures(32, shape, 1)[0]
        records(path, [{"shape": shape, "data": image.tobytes()} for image in images])
        return
    from PIL import Image

    height, width = map(int, sizes.split("x"))
    for number, image in enumerate(pictures(8, (height, width, 3), 1)[0]):
        Image.fromarray(image).save(str(path).format(number))
