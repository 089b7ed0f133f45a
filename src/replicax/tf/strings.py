"""`tf.strings`: texts of pipelines; on the host, of Python's texts and NumPy arrays of them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax.data._host import HostTensor
from replicax.tf._missing import missing_name


def _each(fn: Callable[[str], Any], value: Any, kind: Any = object) -> Any:
    """`fn` of every text; bytes are read as UTF-8, and given back as bytes."""

    def one(text: Any) -> Any:
        if not isinstance(text, bytes):
            return fn(str(text))
        found = fn(text.decode(errors="replace"))
        return found.encode() if isinstance(found, str) else found

    texts = value if isinstance(value, np.ndarray) else np.asarray(value, object)
    found = np.empty(texts.shape, kind)
    for place in np.ndindex(texts.shape):
        found[place] = one(texts[place] if not texts.ndim else texts.view(np.ndarray)[place])
    return HostTensor.of(found)


def lower(input: Any, encoding: str = "utf-8", name: str | None = None) -> Any:
    """In small letters; of all alphabets."""
    del encoding, name
    return _each(str.lower, input)


def upper(input: Any, encoding: str = "utf-8", name: str | None = None) -> Any:
    """In capital letters; of all alphabets."""
    del encoding, name
    return _each(str.upper, input)


def strip(input: Any, name: str | None = None) -> Any:
    """Without spaces at both ends."""
    del name
    return _each(str.strip, input)


def length(input: Any, unit: str = "BYTE", name: str | None = None) -> Any:
    """How many bytes, or, with `unit="UTF8_CHAR"`, characters."""
    del name
    characters = unit == "UTF8_CHAR"
    return _each(lambda text: len(text if characters else text.encode()), input, np.int32)


def substr(input: Any, pos: int, len: int, unit: str = "BYTE", name: str | None = None) -> Any:
    """`len` bytes from byte `pos` on; characters, with `unit="UTF8_CHAR"`."""
    del name

    def part(text: str) -> str:
        if unit == "UTF8_CHAR":
            return text[pos:][:len]
        return text.encode()[pos:][:len].decode(errors="replace")

    return _each(part, input)


def regex_replace(
    input: Any, pattern: str, rewrite: str, replace_global: bool = True, name: str | None = None
) -> Any:
    """With what fits a pattern replaced; the patterns are those of Python."""
    del name
    count = 0 if replace_global else 1
    rewrite = re.sub(r"\\(\d)", r"\\g<\1>", _plain(rewrite))
    return _each(lambda text: re.sub(_plain(pattern), rewrite, text, count=count), input)


def regex_full_match(input: Any, pattern: str, name: str | None = None) -> Any:
    """Whether the whole text fits a pattern of Python."""
    del name
    return _each(lambda text: re.fullmatch(_plain(pattern), text) is not None, input, bool)


def split(input: Any, sep: str | None = None, maxsplit: int = -1, name: str | None = None) -> Any:
    """The words of a text; of an array, an array of arrays, since rows differ in length."""
    del name
    words = np.vectorize(
        lambda text: _words(text, _plain(sep) if sep else None, maxsplit), otypes=[object]
    )(np.asarray(input, object))
    return words.item() if not words.ndim else HostTensor.of(words)


def _words(text: Any, sep: str | None, maxsplit: int) -> Any:
    found = _plain(text).split(sep, maxsplit)
    parts = [part.encode() for part in found] if isinstance(text, bytes) else found
    return HostTensor.of(np.array(parts, object))


def bytes_split(input: Any, name: str | None = None) -> Any:
    """The bytes of a text, one by one."""
    del name
    text = _plain(input).encode()
    return HostTensor.of(np.array([text[i : i + 1] for i in range(len(text))], object))


def unicode_split(input: Any, input_encoding: str = "UTF-8", name: str | None = None) -> Any:
    """The characters of a text, one by one."""
    del input_encoding, name
    return HostTensor.of(np.array(list(_plain(input)), object))


def join(inputs: Any, separator: str = "", name: str | None = None) -> Any:
    """The texts of several arrays joined, one of each; a single text goes to all."""
    del name
    columns = np.broadcast_arrays(*(np.asarray(one, object) for one in inputs))
    found = np.empty(columns[0].shape, object)
    for place in np.ndindex(found.shape):
        found[place] = _plain(separator).join(_plain(column[place]) for column in columns)
    return HostTensor.of(found)


def reduce_join(
    inputs: Any, axis: Any = None, keepdims: bool = False, separator: str = "", name: Any = None
) -> Any:
    """The texts along an axis joined, or all of them."""
    del name
    texts = np.asarray(inputs, object)
    texts = texts.reshape(-1) if axis is None else np.moveaxis(texts, axis, -1)
    found = np.empty(texts.shape[:-1], object)
    for place in np.ndindex(found.shape):
        found[place] = _plain(separator).join(map(_plain, texts[place]))
    if keepdims:
        found = (
            np.expand_dims(found, axis)
            if axis is not None
            else found.reshape([1] * np.ndim(inputs))
        )
    return HostTensor.of(found)


def to_number(input: Any, out_type: Any = "float32", name: str | None = None) -> Any:
    """The numbers that texts say."""
    del name
    kind = np.dtype(out_type)
    return _each(float if kind.kind == "f" else int, input, kind)


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Any:
    """Numbers as texts."""
    del name
    kind = "e" if scientific else "g" if shortest else "f"
    places = "" if precision < 0 else f".{precision}"

    def one(value: Any) -> str:
        if isinstance(value, bool | np.bool_):
            text = str(bool(value)).lower()
        elif isinstance(value, float | np.floating):
            text = f"{value:{places}{kind}}"
        else:
            text = str(value)
        return text if width < 0 else text.rjust(width, fill or " ")

    values = np.asarray(input)
    found = np.empty(values.shape, object)
    for place in np.ndindex(values.shape):
        found[place] = one(values[place])
    return HostTensor.of(found)


def format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: Any = None
) -> Any:
    """A text with values in it, as `tf.print` prints them."""
    from replicax._core.text import array_text, ends

    del name
    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    parts = _plain(template).split(placeholder)
    texts = [
        array_text(ends(array, summarize), array.shape, summarize)
        for array in map(np.asarray, values)
    ]
    pieces = [piece for pair in zip(parts, [*texts, ""], strict=True) for piece in pair]
    return HostTensor.of("".join(pieces))


def to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Any:
    """A number below `num_buckets` for each text, always the same.

    **Differs from TF:** the numbers are others.
    """
    del name
    return _each(lambda text: zlib.crc32(text.encode()) % num_buckets, input, np.int64)


to_hash_bucket = to_hash_bucket_fast


def _plain(text: Any) -> str:
    found = text.item() if hasattr(text, "item") else text
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
