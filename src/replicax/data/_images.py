"""`image_dataset_from_directory`: folders of images, one folder per class, as batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replicax._core.errors import CorruptRecord, UsageError
from replicax.data._codecs import decode
from replicax.data._derive import one_of
from replicax.data._formats.format import open_bytes
from replicax.data._image_files import batches_of, check_split, files_below
from replicax.data._resize import METHODS, resize

if TYPE_CHECKING:
    import os

    import numpy as np

_CHANNELS = {"grayscale": 1, "rgb": 3, "rgba": 4}


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
        shuffle: Whether the order is random, or that of the paths.
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
        size = (self.size,) * 2 if isinstance(self.size, int) else tuple(self.size)
        object.__setattr__(self, "size", size)
        if not (len(size) == 2 and all(isinstance(n, int) and n > 0 for n in size)):
            raise UsageError.of("image_size", "a positive int, or height and width", self.size)
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
