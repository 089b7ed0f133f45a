"""Texts as arrays, a vocabulary of tokens, ids as rows of numbers: what text layers compute with.

All of it is on the host: devices know no text.
"""

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
    """An array of `str`, of text or bytes, or of a nest of lists of them."""
    array = np.asarray(value)
    if array.dtype.kind in "US":
        # From the beginning: NumPy cuts off zeros at the end of a text of fixed width.
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
    """A result, with `numpy()`."""
    return np.asarray(array).view(HostTensor)


def one_hot(ids: np.ndarray, depth: int) -> np.ndarray:
    """A one at each id, none where it is negative; an axis of one is replaced."""
    if ids.ndim > 1 and ids.shape[-1] == 1:
        ids = ids[..., 0]
    return (ids[..., None] == np.arange(depth)).astype(keras.config.floatx())


def counted(ids: np.ndarray, rows: np.ndarray, shape: Sequence[int], depth: int) -> np.ndarray:
    """How often each id stands in each row.

    Args:
        ids: Of all rows, one after the other; what is negative does not count.
        rows: The row of each id.
        shape: Of the result, without the last axis.
        depth: How many ids there are.
    """
    kept = ids >= 0
    count = int(np.prod(shape, dtype=int))
    found = np.bincount(rows[kept] * depth + ids[kept], minlength=count * depth)
    return found.reshape(*shape, depth).astype(keras.config.floatx())


def padded(ids: np.ndarray, lengths: np.ndarray, length: int | None) -> np.ndarray:
    """Rows of different lengths in one array, filled up with zeros, or cut off.

    Args:
        ids: Of all rows, one after the other.
        lengths: How many each row has.
        length: Of the result; None for the longest row.
    """
    longest = int(lengths.max(initial=0))
    result = np.zeros((len(lengths), longest), np.int64)
    result[np.arange(longest) < lengths[:, None]] = ids
    if length is None:
        return result
    return np.pad(result[:, :length], ((0, 0), (0, max(length - longest, 0))))


def batches_of(data: Any, steps: int | None) -> Any:
    """What `adapt` reads: batches of a data set, or one array as one batch."""
    if isinstance(data, str | bytes | list | tuple) or hasattr(data, "dtype"):
        return [data]
    return data if steps is None else (batch for batch, _ in zip(data, range(steps), strict=False))


MODES = ("int", "one_hot", "multi_hot", "count", "tf_idf")
_OLDER = {"binary": "multi_hot", "tf-idf": "tf_idf"}


def check_mode(mode: str, sparse: bool, *, invert: bool = False) -> str:
    """The output mode under its name of today.

    Raises:
        UsageError: If there is none of this name, or it cannot be made.
    """
    known = _OLDER.get(mode, mode)
    if known not in MODES or sparse or (invert and known != "int"):
        raise UsageError(
            f"An output mode is one of {', '.join(MODES)}; of `invert` it is 'int'. Received: "
            f"output_mode={mode!r}, invert={invert}, sparse={sparse}. JAX has no sparse arrays "
            "that layers take. Use one of these, and leave `sparse` out."
        )
    return known


@final
class Vocabulary:
    """Tokens in an order, behind places for masked and unknown ones.

    Args:
        special: What stands in those places.
        unknown: Where the places for unknown tokens begin.
        mask_token: The token that is masked, or None.
        masked: The index it gets; negative if it does not count.
        oov_token: What stands for unknown tokens where indices become tokens.
        integers: Whether the tokens are integers.
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
        """Give it its tokens."""
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
        """The index of each text.

        Raises:
            UsageError: If a text is unknown and there is no place for such.
        """
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
        """The index of each integer; of an array on a device, or of compiled code, there.

        Raises:
            UsageError: If one is unknown and there is no place for such.
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
                "With num_oov_indices=0 all inputs are in the vocabulary. Received: "
                f"{list(dict.fromkeys(keys.tolist()))[:5]}, which are not. They have no index. "
                "Set num_oov_indices=1, or complete the vocabulary."
            )

    def tokens_at(self, indices: np.ndarray) -> np.ndarray:
        """The token of each index."""
        tokens = np.empty(len(self) + 1, np.int64 if self._integers else object)
        tokens[:] = [*self.special, *self.tokens, self._oov_token]
        within = (indices >= 0) & (indices < len(self))
        return tokens[np.where(within, indices, len(self))]


def _hashed(keys: Any, buckets: int) -> np.ndarray:
    # Here, so that no layer of text loads what parameter servers need.
    from replicax._ps.tables.hashing import hash_ids

    return hash_ids(keys, buckets)


@final
class Learnt:
    """What has been seen of tokens."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._documents: Counter[Any] = Counter()
        self._seen = 0

    def see(self, rows: Sequence[Sequence[Any]]) -> None:
        """Count the tokens of some documents."""
        for row in rows:
            self._counts.update(row)
            self._documents.update(set(row))
        self._seen += len(rows)

    def tokens(self, without: Sequence[Any], most: int | None) -> list[Any]:
        """The most frequent tokens first; of equals, as in Keras, the last by the alphabet."""
        counts = {token: n for token, n in self._counts.items() if token not in without}
        return sorted(counts, key=lambda token: (counts[token], token), reverse=True)[:most]

    def weights(self, tokens: Sequence[Any]) -> np.ndarray:
        """How much a token counts: more, the fewer documents have it."""
        having = np.array([self._documents[token] for token in tokens], np.float32)
        return np.log1p(self._seen / (1 + having))
