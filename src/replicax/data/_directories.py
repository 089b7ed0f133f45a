"""The data sets of `keras.utils`: folders of images or texts, one per class, and time series."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError, checks_types
from replicax.data._dataset import Dataset
from replicax.data._derive import one_of, whole
from replicax.data._formats.format import open_bytes
from replicax.data._options import AUTOTUNE
from replicax.data._pixels import METHODS, decode, resize

_FORMATS = (".bmp", ".gif", ".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class ImageFiles:
    """Paths of images or texts, their labels if any, and the names of the classes."""

    paths: list[str]
    labels: np.ndarray | None
    class_names: list[str] | None
    formats: tuple[str, ...]

    def chosen(self, order: Sequence[int]) -> ImageFiles:
        """Some of the files, in this order."""
        paths = [self.paths[number] for number in order]
        labels = None if self.labels is None else self.labels[np.asarray(order, int)]
        return ImageFiles(paths, labels, self.class_names, self.formats)

    def shuffled(self, seed: int) -> ImageFiles:
        """The files in the order that Keras gives them before it splits them."""
        order = list(range(len(self.paths)))
        np.random.RandomState(seed % 2**32).shuffle(order)
        return self.chosen(order)

    def split(self, fraction: float, subset: str | None) -> list[ImageFiles]:
        """All files, or those for training or for validation, or both."""
        cut = len(self.paths) - int(fraction * len(self.paths))
        training, validation = range(cut), range(cut, len(self.paths))
        parts = {"validation": [validation], "both": [training, validation]}
        return [self.chosen(part) for part in parts.get(subset or "", [training])]


def batches_of(
    found: ImageFiles,
    load: Callable[..., Any],
    batch_size: int | None,
    shuffle: bool,
    seed: int | None,
    validation_split: float | None,
    subset: str | None,
) -> Any:
    """Batches of files as `load` reads them; two data sets for both subsets."""
    found = found if seed is None or not shuffle else found.shuffled(seed)
    made = []
    for number, files in enumerate(found.split(validation_split or 0, subset)):
        if not files.paths:
            raise UsageError(
                f"No file that ends with {' or '.join(files.formats)} in the folder or in this "
                f"part of it (classes: {files.class_names}). Check the folder and "
                "`validation_split`."
            )
        paths = np.array(files.paths, dtype=object)
        rows = Dataset.from_tensor_slices(paths if files.labels is None else (paths, files.labels))
        if shuffle and not number:  # not the second one, which is for validation
            rows = rows.shuffle(len(paths), seed)
        rows = rows.map(load, num_parallel_calls=AUTOTUNE)
        result: Any = (rows if batch_size is None else rows.batch(batch_size)).prefetch(AUTOTUNE)
        result.class_names, result.file_paths = files.class_names, files.paths
        made.append(result)
    return tuple(made) if len(made) > 1 else made[0]


def check_split(fraction: float | None, subset: str | None, *, unseeded: bool) -> None:
    """Check that a split has a fraction, a subset, and an order that both calls share."""
    if (fraction is None) != (subset is None) or (fraction is not None and not 0 < fraction < 1):
        raise UsageError(
            f"validation_split={fraction} and subset={subset!r} make no split. Pass a fraction "
            "between 0 and 1 together with a subset, or neither."
        )
    one_of("subset", subset, (None, "training", "validation", "both"))
    if subset is not None and unseeded:
        raise UsageError(
            "`seed` is missing, so the two calls for a shuffled split would divide the files "
            "differently. Pass the same `seed` to both, or shuffle=False."
        )


def files_below(
    directory: str | os.PathLike[str],
    labels: Any,
    label_mode: str | None,
    class_names: Sequence[str] | None,
    follow_links: bool,
    formats: tuple[str, ...] = _FORMATS,
) -> ImageFiles:
    """The images or texts below a folder, sorted by path."""
    folder = Path(directory)
    if not folder.is_dir():
        raise UsageError(f"{os.fspath(directory)!r} is no folder. Check the path on this machine.")
    if isinstance(labels, str) and labels == "inferred" and label_mode is not None:
        names = _folders(folder, class_names)
        parts = [_images_below(folder / name, follow_links, formats) for name in names]
        numbers = np.repeat(np.arange(len(names), dtype=np.int32), [len(part) for part in parts])
        paths = [path for part in parts for path in part]
        return ImageFiles(paths, _encoded(numbers, label_mode, names), names, formats)
    if class_names is not None:
        raise UsageError(
            f"`class_names` has no effect with labels={labels!r:.60} and "
            f"label_mode={label_mode!r}. Leave it out, or use labels='inferred'."
        )
    paths = _images_below(folder, follow_links, formats)
    if labels is None or label_mode is None:
        return ImageFiles(paths, None, None, formats)
    if isinstance(labels, str) or len(labels) != len(paths):
        raise UsageError(
            f"`labels` must be 'inferred', None or one int for each of {len(paths)} files, got "
            f"{labels!r:.60}. Sort them as the paths of the files."
        )
    numbers = np.asarray(labels, np.int32)
    names = [str(label) for label in sorted(set(numbers.tolist()))]
    return ImageFiles(paths, _encoded(numbers, label_mode, names), names, formats)


def _folders(folder: Path, class_names: Sequence[str] | None) -> list[str]:
    found = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    if class_names is None:
        return found
    if not set(class_names) <= set(found):
        raise UsageError.of("class_names", f"folders of {found}", list(class_names))
    return list(class_names)


def _images_below(folder: Path, follow_links: bool, formats: tuple[str, ...]) -> list[str]:
    return [
        os.path.join(root, name)
        for root, _, names in sorted(os.walk(folder, followlinks=follow_links))
        for name in sorted(names)
        if name.lower().endswith(formats)
    ]


def _encoded(numbers: np.ndarray, label_mode: str, names: list[str]) -> np.ndarray:
    """The labels as `label_mode` says."""
    if label_mode == "int":
        return numbers
    if label_mode == "categorical":
        return np.eye(len(names), dtype=np.float32)[numbers]
    if label_mode == "binary" and len(names) == 2:
        return numbers.astype(np.float32)[:, None]
    raise UsageError.of(
        "label_mode",
        "'int', 'categorical', None or, for two classes, 'binary'",
        label_mode,
        f"There are {len(names)} classes.",
    )


_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


@checks_types
def image_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: str | Sequence[int] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    color_mode: str = "rgb",
    batch_size: int | None = 32,
    image_size: int | tuple[int, int] = (256, 256),
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    interpolation: str = "bilinear",
    follow_links: bool = False,
    crop_to_aspect_ratio: bool = False,
) -> Any:
    """Batches of the images below a folder, as `keras.utils.image_dataset_from_directory`.

    **Differs from Keras:** nothing is printed; rows are shuffled over the whole data set.

    Args:
        directory: Holds a folder per class, if the labels are inferred.
        labels: `"inferred"`, None, or an int per file, sorted by path.
        label_mode: `"int"`, `"binary"` (0.0 or 1.0), `"categorical"` (one-hot), or None.
        class_names: The folders to take, in the order of their labels; None for all.
        color_mode: `"grayscale"`, `"rgb"` or `"rgba"`.
        batch_size: Images in a batch; None for single images.
        image_size: Height and width of all images.
        shuffle: Whether the order is random; else files are sorted by path.
        seed: The seed of the order; splits off the same files as Keras.
        validation_split: The fraction of files that is for validation.
        subset: `"training"`, `"validation"`, or `"both"` for a pair of data sets.
        interpolation: A method of `tf.image.resize`; without antialiasing, as there.
        follow_links: Whether to enter folders that are links.
        crop_to_aspect_ratio: Whether to cut off borders rather than to distort.

    Returns:
        A data set of float32 images from 0 to 255, or of pairs (images, labels), with the
        attributes `class_names` and `file_paths`.

    Raises:
        UsageError: If an argument is none of these, or there are no images.

    Example:
        >>> import pathlib, tempfile
        >>> from PIL import Image
        >>> import replicax as rx
        >>> path = pathlib.Path(tempfile.mkdtemp(), "black.png")
        >>> Image.new("RGB", (5, 7)).save(path)
        >>> dataset = rx.data.image_dataset_from_directory(path.parent, None, image_size=2)
        >>> [batch.tolist() for batch in dataset.map(lambda images: images.mean(3))]
        [[[[0.0, 0.0], [0.0, 0.0]]]]
    """
    load = LoadImage(image_size, color_mode, interpolation, crop_to_aspect_ratio)
    check_split(validation_split, subset, unseeded=shuffle and seed is None)  # before reading
    files = files_below(directory, labels, label_mode, class_names, follow_links)
    return batches_of(files, load, batch_size, shuffle, seed, validation_split, subset)


@dataclass(frozen=True)
class LoadImage:
    """The function of a path that gives an image; labels beside it pass through.

    The fields are arguments of `image_dataset_from_directory`.
    """

    size: Any
    color_mode: str
    interpolation: str
    crop: bool

    def __post_init__(self) -> None:
        size = (self.size,) * 2 if isinstance(self.size, int | np.integer) else tuple(self.size)
        if not (len(size) == 2 and all(isinstance(n, int | np.integer) and n > 0 for n in size)):
            raise UsageError.of("image_size", "a positive int, or height and width", self.size)
        object.__setattr__(self, "size", tuple(map(int, size)))
        one_of("color_mode", self.color_mode, tuple(_CHANNELS))
        one_of("interpolation", self.interpolation, tuple(METHODS))

    def __call__(self, path: str, *labels: Any) -> Any:
        image = decoded(path, _CHANNELS[self.color_mode])
        if self.crop:
            image = _cropped(image, *self.size)
        image = resize(image, self.size, self.interpolation)
        return (image, *labels) if labels else image


def decoded(path: str, channels: int) -> np.ndarray:
    """Pixels of a file's first frame: uint8 of shape (height, width, channels)."""
    with open_bytes(path) as file:
        contents = file.read()
    try:
        return decode(contents, channels)
    except CorruptRecord as error:
        raise CorruptRecord(
            f"Cannot read the image {path!r}: {error.__cause__}. Replace the file or leave it out."
        ) from error


def _cropped(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The largest central window with the proportions of (height, width)."""
    old_height, old_width = image.shape[:2]
    rows = max(min(old_height, int(old_width * height / width)), 1)
    columns = max(min(old_width, int(old_height * width / height)), 1)
    top, left = (old_height - rows) // 2, (old_width - columns) // 2
    return image[top : top + rows, left : left + columns]


@checks_types
def text_dataset_from_directory(
    directory: str | os.PathLike[str],
    labels: str | Sequence[int] | None = "inferred",
    label_mode: str | None = "int",
    class_names: Sequence[str] | None = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    verbose: bool = True,
) -> Any:
    """Batches of the `.txt` files below a folder, as `keras.utils.text_dataset_from_directory`.

    **Differs from Keras:** texts are `str`, of UTF-8; nothing is printed; rows are shuffled over
    the whole data set.

    Args:
        directory: Holds a folder per class, if the labels are inferred.
        labels: `"inferred"`, None, or an int per file, sorted by path.
        label_mode: `"int"`, `"binary"` (0.0 or 1.0), `"categorical"` (one-hot), or None.
        class_names: The folders to take, in the order of their labels; None for all.
        batch_size: Texts in a batch; None for single texts.
        max_length: The number of characters to keep of a text.
        shuffle: Whether the order is random; else files are sorted by path.
        seed: The seed of the order; splits off the same files as Keras.
        validation_split: The fraction of files that is for validation.
        subset: `"training"`, `"validation"`, or `"both"` for a pair of data sets.
        follow_links: Whether to enter folders that are links.
        verbose: Accepted for Keras programs.

    Returns:
        A data set of texts, or of pairs (texts, labels), with the attributes `class_names` and
        `file_paths`.

    Raises:
        UsageError: If an argument is none of these, or there are no texts.

    Example:
        >>> import pathlib, tempfile
        >>> import replicax as rx
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("bad", "good"):
        ...     (folder / name).mkdir()
        ...     _ = (folder / name / "1.txt").write_text(f"A {name} film.")
        >>> dataset = rx.data.text_dataset_from_directory(folder, shuffle=False)
        >>> [(texts.tolist(), labels.tolist()) for texts, labels in dataset]
        [(['A bad film.', 'A good film.'], [0, 1])]
    """

    def load(path: str, *labels: Any) -> Any:
        text = Path(path).read_text(encoding="utf-8")[:max_length]
        return (text, *labels) if labels else text

    check_split(validation_split, subset, unseeded=shuffle and seed is None)  # before reading
    files = files_below(directory, labels, label_mode, class_names, follow_links, (".txt",))
    return batches_of(files, load, batch_size, shuffle, seed, validation_split, subset)


@checks_types
def timeseries_dataset_from_array(
    data: Any,
    targets: Any,
    sequence_length: int,
    sequence_stride: int = 1,
    sampling_rate: int = 1,
    batch_size: int | None = 128,
    shuffle: bool = False,
    seed: int | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
) -> Any:
    """Batches of windows over time, as `keras.utils.timeseries_dataset_from_array`.

    Args:
        data: An array whose first axis is time.
        targets: A row for the window that begins at the same index; None for windows alone.
        sequence_length: Rows of a window.
        sequence_stride: Distance between the starts of windows, in rows.
        sampling_rate: Distance between the rows of a window.
        batch_size: Windows in a batch; None for single windows.
        shuffle: Whether the order is random.
        seed: The seed of the order.
        start_index: The first row that is used; 0 by default.
        end_index: The row behind the last; the end by default.

    Raises:
        UsageError: If there is no room for a window.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> hours = np.arange(6)
        >>> dataset = rx.data.timeseries_dataset_from_array(hours[:-2], hours[2:], 2)
        >>> [(windows.tolist(), targets.tolist()) for windows, targets in dataset]
        [([[0, 1], [1, 2], [2, 3]], [2, 3, 4])]
    """
    rows, start = np.atleast_1d(data), start_index or 0
    if targets is not None and not np.ndim(targets):
        raise UsageError.of("targets", "an array with a row for each window, or None", targets)
    sequence_length = whole("sequence_length", sequence_length, least=1)
    sequence_stride = whole("sequence_stride", sequence_stride, least=1)
    sampling_rate = whole("sampling_rate", sampling_rate, least=1)
    end = len(rows) if end_index is None else min(end_index, len(rows))
    width = (sequence_length - 1) * sampling_rate + 1
    last = end - width + 1
    if targets is not None:
        last = min(last, len(targets))
    starts = np.arange(start, last, sequence_stride)
    if not len(starts):
        raise UsageError(
            f"No window fits into rows {start} to {end} with sequence_length={sequence_length} and "
            f"sampling_rate={sampling_rate}. Make the window shorter."
        )
    made = Dataset.from_tensor_slices(starts)
    made = made.shuffle(len(starts), seed) if shuffle else made
    made = made if batch_size is None else made.batch(batch_size)
    wanted = None if targets is None else np.asarray(targets)
    return made.map(_Windows(rows, wanted, np.arange(0, width, sampling_rate)))


@dataclass(frozen=True, eq=False)
class _Windows:
    """The windows that begin at some rows, with their targets."""

    rows: np.ndarray
    targets: np.ndarray | None
    offsets: np.ndarray

    def __call__(self, begin: Any) -> Any:
        found = self.rows[np.asarray(begin)[..., None] + self.offsets]
        return found if self.targets is None else (found, self.targets[begin])
