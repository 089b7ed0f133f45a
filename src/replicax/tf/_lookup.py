"""`tf.lookup`: tables from texts or numbers to values; on the host, numbers in compiled code, too.

A table of texts is for pipelines. A static one of whole numbers is a sorted array in compiled code.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.data._host import ENCODED
from replicax.tf._calls import array, fitting, hosted, numpy_dtype
from replicax.tf._dtypes import as_dtype
from replicax.tf._files import GFile


def _plain(values: Any, dtype: Any = None) -> np.ndarray:
    """An array on the host; of texts, of bytes."""
    found = np.asarray(array(values)[1])
    if found.dtype.kind in "OSU":
        return np.asarray(ENCODED(found.astype(object)), object)
    return found if dtype is None else found.astype(numpy_dtype(dtype))


class KeyValueTensorInitializer:
    """The keys and values of a table."""

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        self.keys, self.values = _plain(keys, key_dtype), _plain(values, value_dtype)
        self.key_dtype, self.value_dtype = as_dtype(self.keys.dtype), as_dtype(self.values.dtype)


class TextFileIndex:
    """Numbers for a key or value that is no column of a line."""

    WHOLE_LINE: ClassVar[int] = -2
    LINE_NUMBER: ClassVar[int] = -1


class TextFileInitializer(KeyValueTensorInitializer):
    """The keys and values of a table, a line of a file each."""

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
        value_index_offset: int = 0,
    ) -> None:
        with GFile(filename, "rb") as file:
            lines = file.read().decode().splitlines()[:vocab_size]

        def column(index: int, dtype: Any, offset: int = 0) -> np.ndarray:
            if index == TextFileIndex.LINE_NUMBER:
                return np.arange(len(lines)) + offset
            whole = index == TextFileIndex.WHOLE_LINE
            texts = [line if whole else line.split(delimiter)[index] for line in lines]
            kind = numpy_dtype(dtype)
            return np.array(texts if kind.hasobject else [kind.type(t) for t in texts], kind)

        keys, values = (
            column(key_index, key_dtype),
            column(value_index, value_dtype, value_index_offset),
        )
        super().__init__(keys, values, key_dtype, value_dtype)


class _Table:
    """A value, or a row of them, for each key, and one for what is no key."""

    _changes = False

    def __init__(self, keys: np.ndarray, values: np.ndarray, default: Any) -> None:
        self._held = dict(zip(keys.tolist(), values, strict=True))
        self._default = np.broadcast_to(_plain(default).astype(values.dtype), values.shape[1:])
        self.key_dtype, self.value_dtype = as_dtype(keys.dtype), as_dtype(values.dtype)

    def size(self, name: str | None = None) -> Any:
        """How many keys there are."""
        return hosted(np.int64(len(self._held)))

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The value of each key."""
        if isinstance(keys, jax.Array):
            return self._in_compiled_code(keys)
        keys, other = _plain(keys), self._default[()]
        found = self._stacked([self._held.get(key, other) for key in keys.ravel().tolist()])
        return hosted(found.reshape(keys.shape + self._default.shape))

    __getitem__ = lookup

    def _stacked(self, values: Collection[Any]) -> np.ndarray:
        found = np.empty((len(values), *self._default.shape), self._default.dtype)
        for row, value in enumerate(values):
            found[row] = value
        return found

    def _in_compiled_code(self, keys: Any) -> Any:
        if isinstance(keys, Tracer) and (self._changes or self._default.dtype == object):
            raise UsageError(
                f"Compiled code cannot look up in this {type(self).__name__} of "
                f"{self.value_dtype.name}: it holds text, or changes. Look up in `dataset.map`, "
                "or use a StaticHashTable of numbers."
            )
        if not isinstance(keys, Tracer):
            found = self.lookup(np.asarray(keys))
            return found if found.dtype == object else jnp.asarray(fitting(found))
        known = np.array(list(self._held), np.int64)
        if not len(known):
            return jnp.broadcast_to(self._default, (*keys.shape, *self._default.shape))
        order = np.argsort(known)
        ordered = jnp.asarray(fitting(known[order])).astype(keys.dtype)
        values = jnp.asarray(fitting(self._stacked(self._held.values())[order]))
        places = jnp.clip(jnp.searchsorted(ordered, keys), 0, len(known) - 1)
        there = (ordered[places] == keys).reshape(*keys.shape, *[1] * (values.ndim - 1))
        return jnp.where(there, values[places], jnp.asarray(self._default, values.dtype))


@final
class StaticHashTable(_Table):
    """A table that stays as it is.

    Raises:
        UsageError: If a key has two values.

    Example:
        >>> import replicax.tf as tf
        >>> words = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
        >>> tf.lookup.StaticHashTable(words, -1).lookup(["b", "c"]).numpy().tolist()
        [2, -1]
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer,
        default_value: Any,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(initializer.keys, initializer.values, default_value)
        if len(self._held) < len(initializer.keys):
            raise UsageError(
                f"Keys of a table must differ, got {len(initializer.keys)} keys with "
                f"{len(self._held)} different ones. Remove the others."
            )


@final
class StaticVocabularyTable(_Table):
    """A table from words to their numbers; a word that is not there has one of the last numbers.

    **Differs from TF:** which of the last numbers it is.
    """

    def __init__(
        self,
        initializer: KeyValueTensorInitializer | None,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str | None = None,
        experimental_is_anonymous: bool = False,
    ) -> None:
        if initializer is None:
            initializer = KeyValueTensorInitializer(np.array([], object), np.array([], np.int64))
        super().__init__(initializer.keys, initializer.values.astype(np.int64), -1)
        self._buckets = num_oov_buckets

    def size(self, name: str | None = None) -> Any:
        """How many numbers there are."""
        return hosted(np.int64(len(self._held) + self._buckets))

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The number of each word."""
        found = super().lookup(keys)
        if isinstance(keys, jax.Array):
            return jnp.where(found < 0, len(self._held) + keys % self._buckets, found)
        keys = _plain(keys)
        others = [
            zlib.crc32(key) if isinstance(key, bytes) else int(key) for key in keys.ravel().tolist()
        ]
        other = np.array(others, np.int64).reshape(keys.shape) % self._buckets
        return hosted(np.where(np.asarray(found) < 0, len(self._held) + other, np.asarray(found)))

    __getitem__ = lookup


class MutableHashTable(_Table):
    """A table that takes new keys and values; outside compiled code."""

    _changes = True

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        default = _plain(default_value, value_dtype)
        values = np.empty((0, *default.shape), default.dtype)
        super().__init__(np.empty(0, numpy_dtype(key_dtype)), values, default)

    def insert(self, keys: Any, values: Any, name: str | None = None) -> None:
        """Give each key a value.

        Raises:
            UsageError: If there are more or fewer values than keys.
        """
        keys = _plain(keys).ravel().tolist()
        values = _plain(values).astype(self._default.dtype).reshape(-1, *self._default.shape)
        if len(keys) != len(values):
            raise UsageError(
                f"{len(keys)} keys cannot have {len(values)} values. Pass a value for each key."
            )
        self._held.update(zip(keys, values, strict=True))

    def remove(self, keys: Any, name: str | None = None) -> None:
        """Take keys out; those that are not there do nothing."""
        for key in _plain(keys).ravel().tolist():
            self._held.pop(key, None)

    def export(self, name: str | None = None) -> tuple[Any, Any]:
        """All keys, and their values."""
        held = self._held.copy()  # threads of pipelines may insert
        keys = np.array(list(held), numpy_dtype(self.key_dtype))
        return hosted(keys), hosted(self._stacked(held.values()))


@final
class DenseHashTable(MutableHashTable):
    """As `MutableHashTable`.

    **Differs from TF:** `empty_key`, `deleted_key` and `initial_num_buckets` have no effect.
    """

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        empty_key: Any = None,
        deleted_key: Any = None,
        initial_num_buckets: int | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
        experimental_is_anonymous: bool = False,
    ) -> None:
        super().__init__(key_dtype, value_dtype, default_value)

    erase = MutableHashTable.remove
