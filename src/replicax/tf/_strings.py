"""`tf.strings`: texts of pipelines; on the host, of Python's texts and NumPy arrays of them."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._derive import one_of
from replicax.data._host import HostTensor
from replicax.tf._calls import in_models, is_symbolic, of_python
from replicax.tf._ragged import RaggedTensor
from replicax.tf._ragged_functions import of_each


def _each(fn: Callable[[str], Any], value: Any, kind: Any = object) -> Any:
    """`fn` of every text; bytes are read as UTF-8, and given back as bytes."""
    if isinstance(value, RaggedTensor):
        return value.with_values(_each(fn, value.values, kind))

    def one(text: Any) -> Any:
        if isinstance(text, str):
            return fn(text)
        if not isinstance(text, bytes):
            raise UsageError.of("input", "of texts", text, "Convert it by `tf.strings.as_string`.")
        found = fn(text.decode(errors="replace"))
        return found.encode() if isinstance(found, str) else found

    return _mapped(one, np.asarray(value, object)).astype(kind)


def _mapped(fn: Callable[[Any], Any], array: np.ndarray) -> Any:
    return HostTensor.of(np.frompyfunc(fn, 1, 1)(array))


def _parts(fn: Callable[[Any], list[Any]], value: Any, kind: Any = object) -> Any:
    """The parts of a text; of a vector of texts, a row for each."""
    if is_symbolic(value):
        raise UsageError(
            "Cannot split the text of a Keras model's input: the rows have several lengths. Use a "
            "`TextVectorization` layer, or split it in `dataset.map`."
        )
    texts = None if isinstance(value, RaggedTensor) else np.asarray(value, object)
    if texts is None or texts.ndim > 1:
        raise UsageError(
            f"Cannot split texts of shape {value.shape if texts is None else texts.shape}: the "
            "result would have two ragged axes. Split `tf.reshape(texts, [-1])`."
        )
    rows = [fn(text) for text in texts.reshape(-1)]
    flat = HostTensor.of(np.array([part for row in rows for part in row], kind))
    return RaggedTensor.from_row_lengths(flat, [len(row) for row in rows]) if texts.ndim else flat


def _of_bytes(change: Callable[[bytes], bytes]) -> Callable[[str], str]:
    """What bytes of Python do: as TensorFlow, they know letters and spaces of ASCII only."""
    return lambda text: change(text.encode()).decode()


@in_models
def lower(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """In small letters; of all alphabets only with `encoding="utf-8"`."""
    return _each(str.lower if encoding else _of_bytes(bytes.lower), input)


@in_models
def upper(input: Any, encoding: str = "", name: str | None = None) -> Any:
    """In capital letters; of all alphabets only with `encoding="utf-8"`."""
    return _each(str.upper if encoding else _of_bytes(bytes.upper), input)


@in_models
def strip(input: Any, name: str | None = None) -> Any:
    """Without the spaces of ASCII at both ends."""
    return _each(_of_bytes(bytes.strip), input)


@in_models
def length(input: Any, unit: str = "BYTE", name: str | None = None) -> Any:
    """How many bytes, or, with `unit="UTF8_CHAR"`, characters."""
    characters = _is_characters(unit)
    return _each(lambda text: len(text if characters else text.encode()), input, np.int32)


def _is_characters(unit: str) -> bool:
    if unit not in ("BYTE", "UTF8_CHAR"):
        raise UsageError.of("unit", "'BYTE' or 'UTF8_CHAR'", unit)
    return unit == "UTF8_CHAR"


@in_models
def substr(input: Any, pos: int, len: int, unit: str = "BYTE", name: str | None = None) -> Any:
    """`len` bytes from byte `pos` on, all if it is negative; `unit="UTF8_CHAR"`: characters."""
    characters, end = _is_characters(unit), len if len >= 0 else None

    def part(text: str) -> str:
        if characters:
            return text[pos:][:end]
        return text.encode()[pos:][:end].decode(errors="replace")

    return _each(part, input)


@in_models
def regex_replace(
    input: Any, pattern: str, rewrite: str, replace_global: bool = True, name: str | None = None
) -> Any:
    """Replace the matches of a pattern; patterns are in Python's syntax."""
    count = 0 if replace_global else 1
    rewrite = re.sub(r"\\(\d)", r"\\g<\1>", _plain(rewrite))
    return _each(lambda text: _pattern(pattern).sub(rewrite, text, count=count), input)


def _pattern(pattern: Any) -> re.Pattern[str]:
    try:
        return re.compile(_plain(pattern))
    except re.error as error:
        raise UsageError.of("pattern", f"a regular expression ({error})", pattern) from error


@in_models
def regex_full_match(input: Any, pattern: str, name: str | None = None) -> Any:
    """Whether the whole text fits a pattern of Python."""
    return _each(lambda text: _pattern(pattern).fullmatch(text) is not None, input, bool)


def split(input: Any, sep: str | None = None, maxsplit: int = -1, name: str | None = None) -> Any:
    """The words of a text; of a vector of texts, a ragged tensor with a row for each.

    Raises:
        UsageError: If there are more axes.
    """
    between = _plain(sep).encode() if sep else None  # by default the spaces of ASCII

    def words(text: Any) -> list[Any]:
        found = _plain(text).encode().split(between, maxsplit)
        return found if isinstance(text, bytes) else [part.decode() for part in found]

    return _parts(words, input)


def bytes_split(input: Any, name: str | None = None) -> Any:
    """The bytes of a text, one by one; of a vector of texts, a ragged tensor."""

    def split_up(text: Any) -> list[Any]:
        held = text if isinstance(text, bytes) else str(text).encode()
        return [held[i : i + 1] for i in range(len(held))]

    return _parts(split_up, input)


def unicode_split(input: Any, input_encoding: str = "UTF-8", name: str | None = None) -> Any:
    """The characters of a text, one by one; of a vector of texts, a ragged tensor."""
    return _parts(lambda text: list(_decoded(text, input_encoding)), input)


def _decoded(text: Any, encoding: str) -> str:
    return text.decode(encoding, "replace") if isinstance(text, bytes) else str(text)


def ngrams(
    data: Any,
    ngram_width: Any,
    separator: str = " ",
    pad_values: Any = None,
    padding_width: int | None = None,
    preserve_short_sequences: bool = False,
    name: str | None = None,
) -> Any:
    """The words along the last axis in runs of this many, each joined to one text."""
    is_ragged = isinstance(data, RaggedTensor)
    texts = np.asarray(data.values if is_ragged else data, object)
    widths = [ngram_width] if isinstance(ngram_width, int) else list(ngram_width)
    if min(widths) < 1:
        raise UsageError.of("ngram_width", "at least 1", ngram_width)
    ends = (pad_values, pad_values) if isinstance(pad_values, str | bytes) else pad_values
    rows = []
    given = data if is_ragged else texts.reshape(-1, texts.shape[-1])
    for words in (np.asarray(row).tolist() for row in given):
        row = []
        for width in widths:
            times = width - 1 if padding_width is None else min(padding_width, width - 1)
            around = ([ends[0]] * times, [ends[1]] * times) if ends else ([], [])
            padded = [*around[0], *words, *around[1]]
            row += [padded[i : i + width] for i in range(len(padded) - width + 1)]
        rows.append(row or [words] * bool(preserve_short_sequences and words))
    joined = [[_plain(separator).join(map(_plain, run)) for run in row] for row in rows]
    if is_ragged:
        flat = np.array([run for row in joined for run in row], object)
        return RaggedTensor.from_row_lengths(HostTensor.of(flat), [len(row) for row in joined])
    found = np.array(joined, object)
    return HostTensor.of(found.reshape(*texts.shape[:-1], len(joined[0])))


def unicode_decode(input: Any, input_encoding: str, name: str | None = None) -> Any:
    """The numbers of the characters of a text; of a vector of texts, a ragged tensor."""

    def numbers(text: Any) -> list[int]:
        return [ord(character) for character in _decoded(text, input_encoding)]

    return _parts(numbers, input, np.int32)


def unicode_encode(
    input: Any,
    output_encoding: str = "UTF-8",
    errors: str = "replace",
    replacement_char: int = 0xFFFD,
    name: str | None = None,
) -> Any:
    """The bytes of texts whose characters have the numbers along the last axis.

    Raises:
        UsageError: If a number is no character's and `errors` is "strict".
    """
    one_of("output_encoding", output_encoding, ("UTF-8", "UTF-16-BE", "UTF-32-BE"))
    one_of("errors", errors, ("replace", "ignore", "strict"))

    def are_wrong(codes: Any) -> Any:
        return (codes < 0) | (codes > 0x10FFFF) | (codes >> 11 == 0xD800 >> 11)  # surrogates

    if are_wrong(replacement_char):
        raise UsageError.of("replacement_char", "the number of a character", replacement_char)

    def encoded(row: Any) -> bytes:
        codes = np.asarray(row)
        if codes.ndim != 1 or (codes.dtype.kind not in "iu" and codes.size):
            raise UsageError.of("input", "numbers of characters, at least a vector", input)
        codes = codes.astype(np.int64)
        wrong = are_wrong(codes)
        if wrong.any() and errors == "strict":
            raise UsageError.of("input", "numbers of Unicode characters", codes[wrong].tolist())
        codes = codes[~wrong] if errors == "ignore" else np.where(wrong, replacement_char, codes)
        return "".join(map(chr, codes.tolist())).encode(output_encoding)

    if isinstance(input, RaggedTensor):
        return HostTensor.of(np.array([encoded(row) for row in input], object))
    array = of_python(input) if isinstance(input, list | tuple) else np.asarray(input)
    shape = math.prod(array.shape[:-1]), *array.shape[-1:]
    rows = array.reshape(shape) if array.ndim else [array]
    texts = np.array([encoded(row) for row in rows], object)
    return HostTensor.of(texts.reshape(array.shape[:-1]))


def unicode_transcode(
    input: Any, input_encoding: str, output_encoding: str, name: str | None = None
) -> Any:
    """Each text in another encoding."""

    def one(text: Any) -> bytes:
        held = text if isinstance(text, bytes) else str(text).encode(input_encoding)
        characters = unicode_decode(held, input_encoding)
        return unicode_encode(characters, output_encoding).item()

    return _mapped(one, np.asarray(input, object))


@in_models
def join(inputs: Any, separator: str = "", name: str | None = None) -> Any:
    """The texts of several arrays joined, one of each; a single text goes to all."""
    if any(isinstance(one, RaggedTensor) for one in inputs):
        return of_each(lambda *flats: join(flats, separator), inputs, {})
    columns = np.broadcast_arrays(*(np.asarray(one, object) for one in inputs))
    return HostTensor.of(_joined(np.stack(columns, axis=-1), separator))


def _joined(texts: np.ndarray, separator: str) -> np.ndarray:
    """The texts along the last axis joined."""
    found = np.empty(texts.shape[:-1], object)
    for place in np.ndindex(found.shape):
        found[place] = _plain(separator).join(map(_plain, texts[place]))
    return found


@in_models
def reduce_join(
    inputs: Any, axis: Any = None, keepdims: bool = False, separator: str = "", name: Any = None
) -> Any:
    """The texts along an axis joined, along several, or all of them."""
    if isinstance(inputs, RaggedTensor):
        return _joined_rows(inputs, axis, keepdims, separator)
    texts = np.asarray(inputs, object)
    axes = range(texts.ndim)[::-1] if axis is None else np.ravel(axis)  # the first is the inmost
    moved = np.moveaxis(texts, tuple(axes), range(-1, -1 - len(axes), -1))
    found = _joined(moved.reshape(*moved.shape[: texts.ndim - len(axes)], -1), separator)
    return HostTensor.of(np.expand_dims(found, tuple(axes)) if keepdims else found)


def _joined_rows(rows: RaggedTensor, axis: Any, keepdims: bool, separator: str) -> Any:
    if axis not in (1, -1) or rows.values.ndim > 1:
        raise rows.refused("joined along other axes than its rows")
    texts = [_joined(np.asarray(row, object), separator) for row in rows]
    found = HostTensor.of(np.array([text.item() for text in texts], object))
    return found[:, None] if keepdims else found


@in_models
def to_number(input: Any, out_type: Any = "float32", name: str | None = None) -> Any:
    """The numbers that texts say."""
    kind = np.dtype(out_type)

    def number(text: str) -> float:
        if "_" in text:  # which Python reads
            raise UsageError(f"Cannot convert {text!r} to a number. Take the underscores out.")
        found = float(text) if kind.kind == "f" else int(text)
        if kind.kind in "iu" and not np.iinfo(kind).min <= found <= np.iinfo(kind).max:
            raise UsageError(f"Cannot convert {text!r} to {kind}. Pass `out_type=tf.int64`.")
        return found

    return _each(number, input, kind)


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
    kind = "e" if scientific else "g" if shortest else "f"
    places = "" if precision < 0 else f".{precision}"

    def one(value: Any) -> str:
        text = f"{value:{places}{kind}}" if isinstance(value, float) else str(value)
        text = text.lower() if isinstance(value, bool) else text
        return text if width < 0 else text.rjust(width, fill or " ")

    if isinstance(input, RaggedTensor):
        return input.with_values(_mapped(one, np.asarray(input.values)))
    return _mapped(one, np.asarray(input))


def format(
    template: str, inputs: Any, placeholder: str = "{}", summarize: int = 3, name: Any = None
) -> Any:
    """A text with values in it, as `tf.print` prints them."""
    from replicax._core.printing import array_text, ends

    values = inputs if isinstance(inputs, list | tuple) else [inputs]
    parts = _plain(template).split(placeholder)
    if len(parts) != len(values) + 1:
        raise UsageError(
            f"{template!r} has {len(parts) - 1} times {placeholder!r}, but there are {len(values)} "
            "`inputs`. Pass a list with a value for each."
        )
    texts = [
        array_text(ends(array, summarize), array.shape, summarize)
        for array in map(np.asarray, values)
    ]
    pieces = [piece for pair in zip(parts, [*texts, ""], strict=True) for piece in pair]
    return HostTensor.of("".join(pieces))


@in_models
def to_hash_bucket_fast(input: Any, num_buckets: int, name: str | None = None) -> Any:
    """A number below `num_buckets` for each text, always the same.

    **Differs from TF:** the numbers are others.
    """
    if num_buckets < 1:
        raise UsageError.of("num_buckets", "at least 1", num_buckets)
    return _each(lambda text: zlib.crc32(text.encode()) % num_buckets, input, np.int64)


to_hash_bucket = to_hash_bucket_fast


def _plain(text: Any) -> str:
    found = text.item() if hasattr(text, "item") else text
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)
