"""Batches of the files below a folder, with their labels, and which are for validation."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._dataset import Dataset
from replicax.data._derive import one_of
from replicax.data._options import AUTOTUNE

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
            "A shuffled split has no `seed`, so its two calls would divide the files differently. "
            "Pass the same `seed` to both calls, or shuffle=False."
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
