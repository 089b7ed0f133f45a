"""The computation of text layers on the host: arrays of text, vocabularies, encodings of ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor


def is_text(value: Any) -> bool:
    """Whether a value is text or bytes, or an array or list of them."""
    if isinstance(value, str | bytes):
        return True
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind or hasattr(value, "dtype"):
        return kind in ("O", "U", "S", "T")
    return isinstance(value, list | tuple) and bool(value) and is_text(value[0])


def as_texts(value: Any) -> np.ndarray:
    """Convert text or bytes, or a nest of lists of them, to an array of `str`."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # Convert `value` again: NumPy strips zeros at the end of texts of fixed width.
        array = np.array(value, dtype=object)
    flat = [_as_str(one) for one in array.ravel().tolist()]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return result.reshape(array.shape)


def _as_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    return value.decode() if isinstance(value, bytes) else str(value)


def on_host(array: Any) -> HostTensor:
    """An array with a method `numpy()`."""
    return np.asarray(array).view(HostTensor)


def one_hot(ids: np.ndarray, depth: int) -> np.ndarray:
    """Encode ids as one-hot rows, zeros for negative ids; a last axis of size one is replaced."""
    if ids.ndim > 1 and ids.shape[-1] == 1:
        ids = ids[..., 0]
    return (ids[..., None] == np.arange(depth)).astype(keras.config.floatx())


def counted(ids: np.ndarray, rows: np.ndarray, shape: Sequence[int], depth: int) -> np.ndarray:
    """Count each id in each row, without negative ids.

    `ids` are the ids of all rows, and `rows` the row of each id. The result has the shape
    `(*shape, depth)`.
    """
    kept = ids >= 0
    count = int(np.prod(shape, dtype=int))
    found = np.bincount(rows[kept] * depth + ids[kept], minlength=count * depth)
    return found.reshape(*shape, depth).astype(keras.config.floatx())


def padded(ids: np.ndarray, lengths: np.ndarray, length: int | None) -> np.ndarray:
    """Rows of different `lengths` in one array, padded with zeros or cut to `length`.

    `ids` are the ids of all rows, one after the other. Without `length`, rows are as long as the
    longest one.
    """
    longest = int(lengths.max(initial=0))
    result = np.zeros((len(lengths), longest), np.int64)
    result[np.arange(longest) < lengths[:, None]] = ids
    if length is None:
        return result
    return np.pad(result[:, :length], ((0, 0), (0, max(length - longest, 0))))


def batches_of(data: Any, steps: int | None) -> Any:
    """The batches that `adapt` reads: of a data set, or an array as one batch."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "dtype"):
        return [data]
    return data if steps is None else (batch for batch, _ in zip(data, range(steps), strict=False))


MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
_OLDER = {"binary": "multi_hot", "tf-idf": "tf_idf"}


def check_mode(mode: str, sparse: bool, *, invert: bool = False) -> str:
    """The output mode under its current name; `UsageError` if it is unknown or not supported."""
    known = _OLDER.get(mode, mode)
    if known not in MODES or (invert and known != "int"):
        names = "'int' with `invert`" if invert else f"one of {', '.join(map(repr, MODES))}"
        raise UsageError.of("output_mode", names, mode)
    if sparse:
        raise UsageError.of("sparse", "False", sparse, "Layers on JAX take no sparse arrays.")
    return known


@final
class Vocabulary:
    """Tokens with their indices, after special tokens for masked and unknown inputs.

    Indices from `unknown` to the end of `special` are for unknown tokens. `mask_token` gets the
    index `masked`, which is negative if it is not counted. `oov_token` replaces indices that are
    not in the vocabulary.
    """

    def __init__(
        self,
        special: Sequence[Any],
        unknown: int,
        *,
        mask_token: Any,
        masked: int,
        oov_token: Any,
        integers: bool,
    ) -> None:
        self.special, self.tokens = list(special), []
        self._unknown, self._oov_token = unknown, oov_token
        self._mask_token, self._masked = mask_token, masked
        self._integers = integers
        self.fill([])

    def __len__(self) -> int:
        return len(self.special) + len(self.tokens)

    def fill(self, tokens: Sequence[Any]) -> None:
        """Set the tokens."""
        self.tokens = list(tokens)
        numbers = range(len(self.special), len(self))
        self._index = dict(zip(self.tokens, numbers, strict=True))
        if self._mask_token is not None:
            self._index[self._mask_token] = self._masked
        self._buckets = len(self.special) - self._unknown
        if self._integers:
            keys = np.array(list(self._index), np.int64)
            order = np.argsort(keys)
            self._keys = keys[order]
            self._values = np.array(list(self._index.values()), np.int64)[order]

    def texts(self, texts: np.ndarray) -> np.ndarray:
        """The index of each text; `UsageError` if a text is unknown and has no index."""
        get, unknown = self._index.get, self._unknown if self._buckets == 1 else None
        found = [get(text, unknown) for text in texts.ravel().tolist()]
        if unknown is None and None in found:
            missing = [at for at, number in enumerate(found) if number is None]
            keys = texts.ravel()[missing]
            self._refuse_unknown(keys)
            hashed = self._unknown + _hashed(keys, self._buckets)
            for at, number in zip(missing, hashed.tolist(), strict=True):
                found[at] = number
        return np.array(found, np.int64).reshape(texts.shape)

    def integers(self, numbers: Any) -> Any:
        """The index of each integer, computed on the device for JAX arrays and in compiled code.

        On the host, raises `UsageError` if an integer is unknown and has no index.
        """
        on_device = keras.ops.is_tensor(numbers)
        xp: Any = keras.ops if on_device else np
        wanted = numbers if on_device else np.asarray(numbers, np.int64)
        rest = wanted % max(self._buckets, 1) + self._unknown
        if not len(self._keys):
            return rest
        keys = xp.convert_to_tensor(self._keys) if on_device else self._keys
        flat = xp.reshape(wanted, (-1,))
        at = xp.minimum(xp.searchsorted(keys, flat), len(self._keys) - 1)
        known = xp.reshape(xp.take(keys, at) == flat, wanted.shape)
        values = xp.reshape(xp.take(self._values, at), wanted.shape)
        if not on_device and not self._buckets:
            self._refuse_unknown(wanted[~known])
        return xp.where(known, values, rest if self._buckets else -1)

    def _refuse_unknown(self, keys: Any) -> None:
        if len(keys) and not self._buckets:
            raise UsageError(
                f"{list(dict.fromkeys(keys.tolist()))[:5]} are not in the vocabulary, and "
                "num_oov_indices=0 has no place for them. Set num_oov_indices=1, or complete the "
                "vocabulary."
            )

    def tokens_at(self, indices: np.ndarray) -> np.ndarray:
        """The token of each index."""
        tokens = np.empty(len(self) + 1, np.int64 if self._integers else object)
        tokens[:] = [*self.special, *self.tokens, self._oov_token]
        within = (indices >= 0) & (indices < len(self))
        return tokens[np.where(within, indices, len(self))]


def _hashed(keys: Any, buckets: int) -> np.ndarray:
    # Imported here, so that text layers do not load the code of parameter servers.
    from replicax._ps.tables.initial_rows import hash_ids

    return hash_ids(keys, buckets)


@final
class TokenCounts:
    """Counts of tokens and of the documents that contain them."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._num_documents = 0

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Count the tokens of documents."""
        for row in rows:
            self._counts.update(row)
            self._documents.update(set(row))
        self._num_documents += len(rows)

    def tokens(self, without: Sequence[Any], most: int | None) -> list[Any]:
        """The most frequent tokens; as in Keras, equals are in reverse alphabetical order."""
        counts = {token: n for token, n in self._counts.items() if token not in without}
        return sorted(counts, key=lambda token: (counts[token], token), reverse=True)[:most]

    def weights(self, tokens: Sequence[Any]) -> np.ndarray:
        """The inverse document frequency of each token."""
        containing = np.array([self._documents[token] for token in tokens], np.float32)
        return np.log1p(self._num_documents / (1 + containing))
