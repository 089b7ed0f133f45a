"""Methods of `Dataset` that write it to disk and read it back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax._core.errors import UsageError
from replicax.data._cardinality import INFINITE_CARDINALITY
from replicax.data._nodes.saved import Saved
from replicax.data._saved.reading import Contents
from replicax.data._saved.writing import Writer

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset


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
                "Cannot save an infinite data set. Call `take`, or save what is before its "
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
    def load(cls: Any, path: str, compression: str | None = None) -> Dataset:
        """The elements that `save` wrote.

        Without compression they are rows with numbers, as those of arrays in memory: `shuffle`,
        `take` and `shard` move the numbers, and a batch is gathered at once. Of the files, no
        more than 128 MB each count as memory of the process.

        Args:
            path: The folder.
            compression: As for `save`; the folder also says it.

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
                "`compression` out: the folder says it."
            )
        return cls(Saved(contents))


def _compression(name: Any) -> str | None:
    """A compression by the name that a saved data set uses."""
    if name in (None, "", "NONE"):
        return None
    if name == "GZIP":
        return name
    raise UsageError.of("compression", "'GZIP' or None", name)
