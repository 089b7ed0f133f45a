"""Whole files, and what their bytes mean; all on the host."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._codecs import decode, encode
from replicax.data._host import HostTensor
from replicax.tf._calls import hosted
from replicax.tf.io import gfile


def read_file(filename: Any, name: str | None = None) -> HostTensor:
    """The bytes of a file."""
    del name
    with gfile.GFile(filename, "rb") as file:
        return HostTensor.of(file.read())


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Write a file, and the folders around it."""
    del name
    folder = gfile.path_of(filename).rpartition("/")[0]
    if folder:
        gfile.makedirs(folder)
    with gfile.GFile(filename, "wb") as file:
        file.write(bytes_of(contents))


def matching_files(pattern: Any, name: str | None = None) -> HostTensor:
    """The paths that fit a pattern, sorted."""
    del name
    return HostTensor.of(np.array(gfile.glob(pattern), object))


def bytes_of(value: Any) -> bytes:
    """Bytes, of a text or an array of one."""
    found = value.item() if hasattr(value, "item") else value
    return found.encode() if isinstance(found, str) else bytes(found)


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = "uint8",
    name: str | None = None,
    expand_animations: bool = True,
) -> Any:
    """The pixels of a JPEG, PNG, BMP, GIF or WebP; of an animation the first picture.

    **Differs from TF:** Pillow decodes: pixels of a JPEG may be other ones by a few steps.
    """
    del name, expand_animations
    found = decode(bytes_of(contents), channels or 0)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        found = (found / np.float32(255)).astype(kind)
    elif kind != np.uint8:
        found = found.astype(kind) * (np.iinfo(kind).max // 255)
    return hosted(found)


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Any:
    """The pixels of a JPEG; see `decode_image`.

    Raises:
        UsageError: If a smaller picture is asked for by `ratio`.
    """
    del fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method
    if ratio != 1:
        raise UsageError(
            f"A JPEG is decoded in its size. Received: ratio={ratio}. Pillow does not make it "
            "smaller on the way. Use `tf.image.resize` behind it."
        )
    return decode_image(contents, channels, name=name)


def decode_png(
    contents: Any, channels: int = 0, dtype: Any = "uint8", name: str | None = None
) -> Any:
    """The pixels of a PNG; see `decode_image`."""
    return decode_image(contents, channels, dtype, name)


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Any:
    """The pixels of a BMP; see `decode_image`."""
    return decode_image(contents, channels, name=name)


def encode_jpeg(image: Any, format: str = "", quality: int = 95, name: str | None = None) -> Any:
    """The bytes of a JPEG."""
    del format, name
    return HostTensor.of(encode(np.asarray(image), "jpeg", quality=quality))


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Any:
    """The bytes of a PNG."""
    del name
    level = {} if compression < 0 else {"compress_level": compression}
    return HostTensor.of(encode(np.asarray(image), "png", **level))


def decode_raw(
    input_bytes: Any,
    out_type: Any,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> Any:
    """Bytes as numbers; of several, a row each.

    Args:
        input_bytes: The bytes, or an array of them.
        out_type: The type of the numbers.
        little_endian: Whether the last byte of a number counts most.
        fixed_length: To how many bytes all are cut, or filled up with zeros.
        name: Not used.
    """
    del name
    kind = np.dtype(out_type).newbyteorder("<" if little_endian else ">")
    texts = np.asarray(input_bytes, object)
    rows = []
    for one in texts.reshape(-1):
        text = bytes_of(one)
        if fixed_length is not None:
            text = text[:fixed_length].ljust(fixed_length, b"\0")
        rows.append(np.frombuffer(text, kind).astype(np.dtype(out_type)))
    return hosted(np.stack(rows).reshape(*texts.shape, -1))


def decode_csv(
    records: Any,
    record_defaults: Any,
    field_delim: str = ",",
    use_quote_delim: bool = True,
    na_value: str = "",
    name: str | None = None,
    select_cols: Any = None,
) -> list[Any]:
    """The columns of lines, each with the type of its default.

    Args:
        records: A line, or an array of lines.
        record_defaults: A value for each column, in a list if it may be missing: `[0.0]`.
        field_delim: What stands between columns.
        use_quote_delim: Whether quotation marks hold a column together.
        na_value: What stands for a missing value, beside nothing.
        name: Not used.
        select_cols: Which columns; None for all.

    Raises:
        UsageError: If a line has another number of columns.
    """
    del name
    lines = np.asarray(records, object)
    quoting = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    texts = [bytes_of(line).decode() for line in lines.reshape(-1)]
    rows = list(csv.reader(texts, delimiter=field_delim, quoting=quoting))
    if select_cols is not None:
        rows = [[row[column] for column in select_cols] for row in rows]
    if any(len(row) != len(record_defaults) for row in rows):
        raise UsageError(
            "A line of CSV has a value for each default. Received: lines of "
            f"{sorted({len(row) for row in rows})} columns, {len(record_defaults)} defaults. "
            "Columns would change places. Pass a default for each, or `select_cols`."
        )
    columns = zip(*rows, strict=True)
    return [
        _column(column, np.asarray(default).reshape(-1), na_value).reshape(lines.shape)
        for column, default in zip(columns, record_defaults, strict=True)
    ]


def _column(texts: Any, default: np.ndarray, missing: str) -> Any:
    kind = object if default.dtype.kind in "OUS" else default.dtype
    kind = {"f": np.float32, "i": np.int32}.get(default.dtype.kind, kind)
    found = np.empty(len(texts), kind)
    for place, text in enumerate(texts):
        found[place] = default[0] if text in ("", missing) else text
    return hosted(found)
