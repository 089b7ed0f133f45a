"""The constructors of `Dataset`, and its methods that write it to disk and read it back."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from replicax._core.errors import UsageError, checks_types
from replicax.data._derive import chosen_seed, dataset_node, whole
from replicax.data._element import as_element
from replicax.data._load import Contents
from replicax.data._node import INFINITE_CARDINALITY
from replicax.data._nodes.cache import Saved
from replicax.data._nodes.files import FileList
from replicax.data._nodes.mix import Chosen, Sampled, Zip
from replicax.data._nodes.select import Shuffle
from replicax.data._nodes.sources import Elements, Fetched, Generated, Range, Slices, rows_like
from replicax.data._save import Writer
from replicax.data._spec import ArraySpec, read_only

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset


class Creation:
    """The constructors of `Dataset`."""

    @classmethod
    def from_tensor_slices(cls, tensors: Any) -> Dataset:
        """The rows of arrays, which stay where they are in memory.

        Args:
            tensors: An array, or a nest (tuple, dict) of arrays of one length. Lists are
                arrays, as in tf.data.

        Returns:
            A data set of the rows; shuffled and batched by index arithmetic.

        Raises:
            UsageError: If the arrays differ in their first dimension, or have none.

        Example:
            >>> import replicax as rx
            >>> rows = {"x": [[1, 2], [3, 4]], "y": [0.5, 1.5]}
            >>> for row in rx.data.Dataset.from_tensor_slices(rows):
            ...     print(row["x"].tolist(), float(row["y"]))
            [1, 2] 0.5
            [3, 4] 1.5
        """
        return _made(cls, Slices(rows_like(tensors)))

    @classmethod
    def from_tensors(cls, tensors: Any) -> Dataset:
        """A data set of one element.

        Args:
            tensors: A nest of arrays.

        Example:
            >>> import replicax as rx
            >>> [x.tolist() for x in rx.data.Dataset.from_tensors([1, 2])]
            [[1, 2]]
        """
        return _made(cls, Elements([read_only(as_element(tensors))]))

    @classmethod
    def from_generator(
        cls,
        generator: Callable[..., Any],
        output_types: Any = None,
        output_shapes: Any = None,
        args: Sequence[Any] | None = None,
        output_signature: Any = None,
    ) -> Dataset:
        """The elements that a generator function yields; it is called at the start of each pass.

        **Differs from TF:** the signature may be left out; it is then inferred from the elements.

        Args:
            generator: Returns an iterable of nests.
            output_types: With `output_shapes`, an older way to give the signature.
            output_shapes: See `output_types`.
            args: Arguments of `generator`.
            output_signature: A nest of `ArraySpec`; elements are converted to it and checked.

        Raises:
            UsageError: If `generator` cannot be called.

        Example:
            >>> import replicax as rx
            >>> def squares(n):
            ...     for i in range(n):
            ...         yield i * i
            >>> [int(n) for n in rx.data.Dataset.from_generator(squares, args=(4,))]
            [0, 1, 4, 9]
        """
        if not callable(generator):
            raise UsageError.of(
                "generator",
                "a function that returns an iterable",
                generator,
                "Pass the generator function itself, without calling it.",
            )
        signature = _signature_of(output_signature, output_types, output_shapes)
        return _made(cls, Generated(generator, tuple(args or ()), signature))

    @classmethod
    def from_source(cls, source: Any) -> Dataset:
        """The rows of an object that has `len(source)` and `source[i]`.

        Such are Grain's random access sources, torch's map-style data sets and Hugging Face
        `datasets`; of the latter whole columns are fetched at once. tf.data has no such source.

        Args:
            source: Has `__len__` and `__getitem__`.

        Raises:
            UsageError: If it has not.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.from_source([5, 6, 7]).skip(1)]
            [6, 7]
        """
        if not (hasattr(source, "__len__") and hasattr(source, "__getitem__")):
            raise UsageError.of(
                "source",
                "an object with `__len__` and `__getitem__`",
                source,
                "Use `from_generator(lambda: source)` to read it in order.",
            )
        return _made(cls, Fetched(source))

    @classmethod
    def range(cls, *args: int, output_type: Any = np.int64) -> Dataset:
        """The numbers of Python's `range`.

        Args:
            *args: Stop; or start and stop; or start, stop and step.
            output_type: Their dtype.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(1, 10, 3)]
            [1, 4, 7]
        """
        numbers = range(*args)
        return _made(cls, Range(numbers.start, numbers.step, len(numbers), np.dtype(output_type)))

    @classmethod
    @checks_types
    def list_files(
        cls,
        file_pattern: str | bytes | os.PathLike[str] | Sequence[str],
        shuffle: bool | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """The names of the files that match patterns, as `str`.

        Args:
            file_pattern: A glob pattern or several.
            shuffle: Whether their order is random, in each epoch another; None for yes.
            seed: The seed of that order.

        Raises:
            UsageError: If a pattern matches no file.

        Example:
            >>> import pathlib, tempfile
            >>> import replicax as rx
            >>> folder = pathlib.Path(tempfile.mkdtemp())
            >>> _ = (folder / "a.txt").write_text("")
            >>> names = rx.data.Dataset.list_files(str(folder / "*.txt"))
            >>> [pathlib.Path(name).name for name in names]
            ['a.txt']
        """
        given: Any = file_pattern
        if isinstance(given, str | bytes | os.PathLike) or getattr(given, "ndim", 1) == 0:
            given = [given]
        patterns = [os.fsdecode(np.asarray(pattern, object).item()) for pattern in given]
        found = [(pattern, sorted(glob.glob(pattern))) for pattern in patterns]
        for pattern, names in found:
            if not names:
                raise UsageError(
                    f"No file matches the pattern {pattern!r}. Check the path on this machine."
                )
        # Sorted, so that every machine shuffles or divides the same list.
        files = FileList(tuple(name for _, names in found for name in names))
        if shuffle is False:
            return _made(cls, files)
        return _made(cls, Shuffle(files, max(1, files.cardinality), *chosen_seed(seed)))

    @classmethod
    def zip(cls, *datasets: Any) -> Dataset:
        """Elements of several data sets side by side; ends with the shortest.

        Args:
            *datasets: Data sets, or one nest of them; the elements are such nests.

        Raises:
            UsageError: If there is none, or something else among them.

        Example:
            >>> import replicax as rx
            >>> a, b = rx.data.Dataset.range(3), rx.data.Dataset.range(10, 13)
            >>> [(int(x), int(y)) for x, y in rx.data.Dataset.zip(a, b)]
            [(0, 10), (1, 11), (2, 12)]
        """
        nest = datasets[0] if len(datasets) == 1 else datasets
        # As in tf.data, lists and None are leaves: a list would be one array.
        leaves, tree = jax.tree.flatten(nest, is_leaf=lambda part: isinstance(part, list | None))
        whole("len(datasets)", len(leaves), least=1)
        nodes = tuple(dataset_node(leaf, "zip") for leaf in leaves)
        return _made(cls, Zip(nodes, tree), leaves[0])

    @classmethod
    @checks_types
    def sample_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        rerandomize_each_iteration: bool = True,
    ) -> Dataset:
        """Each element from a data set that is drawn by its weight.

        Args:
            datasets: Data sets of equal elements.
            weights: Non-negative, one for each; None for equal ones.
            seed: The seed of the draws.
            stop_on_empty_dataset: Whether the elements end as soon as one data set has ended.
            rerandomize_each_iteration: Whether each pass draws anew.

        Raises:
            UsageError: If there is not one weight for each data set, or one is negative.

        Example:
            >>> import replicax as rx
            >>> low, high = rx.data.Dataset.range(3), rx.data.Dataset.range(10, 13)
            >>> mixed = rx.data.Dataset.sample_from_datasets([low, high], seed=1)
            >>> sorted(int(n) for n in mixed)
            [0, 1, 2, 10, 11, 12]
        """
        whole("len(datasets)", len(datasets), least=1)
        given = [1.0] * len(datasets) if weights is None else [float(w) for w in weights]
        if len(given) != len(datasets) or any(w < 0 for w in given) or not sum(given) > 0:
            raise UsageError.of(
                "weights", f"{len(datasets)} non-negative numbers, not all zero", given
            )
        nodes = tuple(dataset_node(d, "sample_from_datasets") for d in datasets)
        drawn = (*chosen_seed(seed), stop_on_empty_dataset, rerandomize_each_iteration)
        return _made(cls, Sampled(nodes, tuple(given), *drawn), datasets[0])

    @classmethod
    @checks_types
    def choose_from_datasets(
        cls,
        datasets: Sequence[Dataset],
        choice_dataset: Dataset,
        stop_on_empty_dataset: bool = True,
    ) -> Dataset:
        """Each element from the data set whose number `choice_dataset` says.

        Args:
            datasets: Data sets of equal elements.
            choice_dataset: Integers.
            stop_on_empty_dataset: Whether the elements end when the chosen data set has ended;
                otherwise the choice is skipped.

        Example:
            >>> import replicax as rx
            >>> low, high = rx.data.Dataset.range(3), rx.data.Dataset.range(10, 13)
            >>> choice = rx.data.Dataset.range(2).repeat(2)
            >>> mixed = rx.data.Dataset.choose_from_datasets([low, high], choice)
            >>> [int(n) for n in mixed]
            [0, 10, 1, 11]
        """
        nodes = tuple(dataset_node(d, "choose_from_datasets") for d in datasets)
        choices = dataset_node(choice_dataset, "choose_from_datasets")
        whole("len(datasets)", len(nodes), least=1)
        return _made(cls, Chosen(nodes, choices, stop_on_empty_dataset), datasets[0])


def _made(cls: Any, node: Any, first: Any = None) -> Dataset:
    """A data set of this node, which counts its passes with the `first` data set it is made of."""
    return cast("Dataset", cls(node, epochs=first.epochs if first else None))


def _signature_of(signature: Any, types: Any, shapes: Any) -> Any:
    """A nest of `ArraySpec`, or None without a signature."""
    if signature is not None:
        return jax.tree.map(_as_spec, signature, is_leaf=lambda part: hasattr(part, "dtype"))
    if types is None:
        return None
    kinds, tree = jax.tree.flatten(types)
    of_kinds = [None] * len(kinds) if shapes is None else tree.flatten_up_to(shapes)
    return tree.unflatten(list(map(_spec, of_kinds, kinds)))


def _as_spec(spec: Any) -> ArraySpec:
    if isinstance(spec, ArraySpec):
        return spec
    if not (hasattr(spec, "shape") and hasattr(spec, "dtype")):
        raise UsageError.of("output_signature", "a nest of `ArraySpec`", spec)
    return _spec(spec.shape, spec.dtype)


def _spec(shape: Any, kind: Any) -> ArraySpec:
    return ArraySpec(shape, bytes if kind is object else kind)


class Storage:
    """Data sets on disk."""

    def save(self: Any, path: str, compression: str | None = None) -> None:
        """Write all elements to a folder, from which `load` reads them.

        The folder appears when all is written; one that was there is replaced. It holds NumPy
        files and a description in JSON, and nothing that is run when it is read.

        **Differs from TF:** the format is another, and there are no shards to be chosen: a row
        of a large file is as quick to reach as one of a small file.

        Args:
            path: The folder.
            compression: None, or `"GZIP"`, with which the rows can be read only in order.

        Raises:
            UsageError: If the data set is infinite, if its elements are not arrays of one type
                and number of axes, or if there is something else at `path`.

        Example:
            >>> import tempfile
            >>> import replicax as rx
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     rx.data.Dataset.range(5).batch(2).save(f"{folder}/numbers")
            ...     [batch.tolist() for batch in rx.data.Dataset.load(f"{folder}/numbers")]
            [[0, 1], [2, 3], [4]]
        """
        packing = _compression(compression)
        if self.cardinality() == INFINITE_CARDINALITY:
            raise UsageError(
                "Cannot save an infinite data set. Call `take`, or save the part before its "
                "`repeat`."
            )
        writer = Writer(str(path))
        try:
            for element in self:
                writer.append(element)
            writer.finish(packing)
        finally:
            writer.discard()

    @classmethod
    def load(
        cls: Any, path: str, element_spec: Any = None, compression: str | None = None
    ) -> Dataset:
        """The elements that `save` wrote.

        Without compression they are rows with numbers, as those of arrays in memory: `shuffle`,
        `take` and `shard` move the numbers, and a batch is gathered at once. Of the files, no
        more than 128 MB each count as memory of the process.

        Args:
            path: The folder.
            element_spec: Ignored: the folder records it.
            compression: As for `save`; the folder also records it.

        Raises:
            UsageError: If there is no saved data set, or one of another compression.
            CorruptRecord: If a part of it is missing or cut off.

        Example:
            >>> import tempfile
            >>> import replicax as rx
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     rx.data.Dataset.from_tensor_slices({"a": ["x", "yy"]}).save(folder)
            ...     rx.data.Dataset.load(folder).element_spec
            {'a': ArraySpec(shape=(), dtype=str)}
        """
        contents = Contents(str(path))
        packing, found = _compression(compression), contents.manifest.compression
        if packing not in (None, found):
            raise UsageError(
                f"{str(path)!r} was saved with compression={found!r}, not {compression!r}. Leave "
                "`compression` out: the folder records it."
            )
        return cls(Saved(contents))


def _compression(name: Any) -> str | None:
    """A compression by the name that a saved data set uses."""
    if name in (None, "", "NONE"):
        return None
    if name == "GZIP":
        return name
    raise UsageError.of("compression", "'GZIP' or None", name)
