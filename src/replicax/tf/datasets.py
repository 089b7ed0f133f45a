"""TensorFlow Datasets without TensorFlow: `import replicax.tf.datasets as tfds`.

`tensorflow-datasets` reads and prepares most data sets without TensorFlow if they are stored as
ArrayRecord files. Here they become data sets of `rx.data`. All other names are that package's own.
It is not brought by Replicax: `pip install tensorflow-datasets array_record`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    import os

    from replicax.data import Dataset

__all__ = ["as_numpy", "builder", "load"]
_PACKAGE = "tensorflow_datasets"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_package(), name)


def _package() -> Any:
    try:
        return importlib.import_module(_PACKAGE)
    except ImportError as error:
        raise ImportError(
            f"`replicax.tf.datasets` needs the package tensorflow-datasets: {error}. Run `pip "
            "install tensorflow-datasets array_record`; TensorFlow is not needed.",
            name=_PACKAGE,
        ) from error


def load(
    name: str,
    *,
    split: Any = None,
    data_dir: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    shuffle_files: bool = False,
    download: bool = True,
    as_supervised: bool = False,
    decoders: Any = None,
    read_config: Any = None,
    with_info: bool = False,
    builder_kwargs: Mapping[str, Any] | None = None,
    download_and_prepare_kwargs: Mapping[str, Any] | None = None,
    as_dataset_kwargs: Mapping[str, Any] | None = None,
    try_gcs: bool = False,
    file_format: Any = None,
) -> Any:
    """A data set of TensorFlow Datasets as one of `rx.data`; the counterpart of `tfds.load`.

    **Differs from TF:** the files are ArrayRecord files, which are read without TensorFlow. What
    was prepared as TFRecord files has to be prepared anew, in another `data_dir`.
    `shuffle_files=True` shuffles all rows, anew for each epoch.

    Args:
        name: Its name, such as "mnist" or "mnist:3.0.1".
        split: Such as "train" or "train[:80%]"; a list of these gives a list; None gives a dict
            of all splits.
        data_dir: Where the files are; None for `~/tensorflow_datasets`.
        batch_size: How many rows a batch has; -1 gives one batch of all, which is no data set.
        shuffle_files: Whether the rows are shuffled.
        download: Whether to download and prepare what is not there.
        as_supervised: Whether elements are `(input, label)`, and no dicts.
        decoders: See `tfds.data_source`.
        read_config: Says nothing here.
        with_info: Whether to return `(dataset, info)`.
        builder_kwargs: More arguments of the builder.
        download_and_prepare_kwargs: More arguments of its `download_and_prepare`.
        as_dataset_kwargs: More arguments of `Builder.as_dataset`.
        try_gcs: See `tfds.builder`.
        file_format: Another format with random access; by default "array_record".

    Raises:
        ImportError: If tensorflow-datasets is not installed.
        UsageError: If the data set has no supervised keys, and `as_supervised` asks for them.
    """
    kwargs = {"file_format": file_format, **(builder_kwargs or {})}
    found = builder(name, data_dir=data_dir, try_gcs=try_gcs, **kwargs)
    if download:
        found.download_and_prepare(**(download_and_prepare_kwargs or {}))
    own = {"split": split, "batch_size": batch_size, "shuffle_files": shuffle_files}
    own |= {"as_supervised": as_supervised, "decoders": decoders, "read_config": read_config}
    dataset = found.as_dataset(**{**own, **(as_dataset_kwargs or {})})
    return (dataset, found.info) if with_info else dataset


def builder(name: str, *, file_format: Any = None, **kwargs: Any) -> Builder:
    """Make the object that downloads, prepares and reads a data set, as `tfds.builder` does.

    Args:
        name: Its name.
        file_format: How its files are stored; by default "array_record".
        **kwargs: See `tfds.builder`.

    Raises:
        ImportError: If tensorflow-datasets is not installed.
    """
    return Builder(_package().builder(name, file_format=file_format or "array_record", **kwargs))


def as_numpy(dataset: Any) -> Any:
    """The data set itself: what data sets of Replicax yield are NumPy arrays.

    Args:
        dataset: A data set, or a nest of arrays.

    Example:
        >>> import replicax as rx
        >>> import replicax.tf.datasets as tfds
        >>> [int(n) for n in tfds.as_numpy(rx.data.Dataset.range(3))]
        [0, 1, 2]
    """
    return dataset


@final
class Builder:
    """A builder of TensorFlow Datasets that returns data sets of `rx.data`.

    All but `as_dataset` is the builder's own: `info`, `download_and_prepare`, `as_data_source`.

    Args:
        builder: The builder.
    """

    def __init__(self, builder: Any) -> None:
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_builder"], name)

    def as_dataset(
        self,
        split: Any = None,
        *,
        batch_size: int | None = None,
        shuffle_files: bool = False,
        decoders: Any = None,
        read_config: Any = None,
        as_supervised: bool = False,
    ) -> Any:
        """The data sets of splits; see `load` for the arguments.

        Raises:
            UsageError: If the data set has no supervised keys, and `as_supervised` asks for them.
        """
        keys = self._supervised_keys() if as_supervised else None

        def made(sources: Any) -> Any:
            if isinstance(sources, Mapping):
                return {name: made(one) for name, one in sources.items()}
            if isinstance(sources, (list, tuple)):
                return type(sources)(made(one) for one in sources)
            return _dataset(_Rows(sources, keys), batch_size, shuffle_files)

        return made(self._builder.as_data_source(split=split, decoders=decoders))

    def _supervised_keys(self) -> Any:
        from replicax._core.errors import UsageError

        keys = self._builder.info.supervised_keys
        if keys is None:
            raise UsageError(
                f"The data set {self._builder.name!r} does not say which is input and which is "
                "label. Leave out `as_supervised=True`, and take them from the dicts in `map`."
            )
        return keys


def _dataset(rows: _Rows, batch_size: int | None, shuffle: bool) -> Dataset | Any:
    from replicax.data import Dataset

    dataset = Dataset.from_source(rows)
    if shuffle and len(rows):
        dataset = dataset.shuffle(len(rows))
    if batch_size == -1:
        return next(iter(dataset.batch(max(len(rows), 1))))
    return dataset if batch_size is None else dataset.batch(batch_size)


@final
class _Rows:
    """The rows of a data source; of supervised ones the values of these keys, tuples or dicts."""

    def __init__(self, source: Any, keys: Any) -> None:
        self._source, self._keys = source, keys

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Any:
        row = self._source[index]
        return row if self._keys is None else _picked(self._keys, row)


def _picked(keys: Any, row: Mapping[str, Any]) -> Any:
    if isinstance(keys, Mapping):
        return {name: _picked(one, row) for name, one in keys.items()}
    if isinstance(keys, (list, tuple)):
        return tuple(_picked(one, row) for one in keys)
    return row[keys]
