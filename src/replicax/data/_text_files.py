"""`text_dataset_from_directory`: folders of texts, one folder per class, as batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicax.data._image_files import batches_of, check_split, files_below

if TYPE_CHECKING:
    import os


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
        shuffle: Whether the order is random, or that of the paths.
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
