"""`tf.io`, `tf.io.gfile`, `tf.audio`: files, images, sounds, records; on the host, with NumPy.

Files of this machine are reached by Python, other files by fsspec, where it is installed.
"""

from __future__ import annotations

import csv
import glob as globbing
import importlib
import io
import os
import shutil
import wave
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._core.folder import named
from replicax.data._host import HostTensor
from replicax.data._pixels import decode, decode_frames, encode
from replicax.tf._calls import hosted, numpy_dtype, published, static_size


class FileStatistics(NamedTuple):
    """The size of a file, and when it was changed."""

    length: int
    mtime_nsec: int
    is_directory: bool


class _Named(io.FileIO):
    """A file whose errors of writing name it."""

    def write(self, data: Any) -> int:
        with named(str(self.name)):
            return super().write(data)


def _open(path: str, mode: str) -> Any:
    if "+" in mode or not set("wax") & set(mode):
        return open(path, mode)
    binary = io.BufferedWriter(_Named(path, mode.translate({ord("b"): None, ord("t"): None})))
    if "b" in mode:
        return binary
    text: Any = io.TextIOWrapper(binary)
    text.mode = mode  # as `open` says it
    return text


@final
class _Here:
    """The files of this machine, by those methods of fsspec's file systems that are used here."""

    open = staticmethod(_open)
    exists = staticmethod(os.path.exists)
    isdir = staticmethod(os.path.isdir)
    makedirs = staticmethod(os.makedirs)
    rm_file = staticmethod(os.remove)
    mkdir = staticmethod(lambda path, create_parents: os.mkdir(path))
    rm = staticmethod(lambda path, recursive: shutil.rmtree(path))
    mv = staticmethod(lambda src, dst, recursive: os.replace(src, dst))
    ls = staticmethod(lambda path, detail: os.listdir(path))


def _path_of(path: Any) -> str:
    """A path, of a text, bytes, a `Path`, or an array of one text."""
    found = path.item() if hasattr(path, "item") else os.fspath(path)
    text = found.decode() if isinstance(found, bytes) else found
    return text.removeprefix("file://")


def _place(path: Any) -> tuple[Any, str]:
    text = _path_of(path)
    if "://" not in text:
        return _Here, text
    try:
        return importlib.import_module("fsspec.core").url_to_fs(text)[0], text
    except ImportError as error:
        raise UsageError(
            f"Cannot open {text!r}: {error}. Run `pip install fsspec`, with the package for this "
            "scheme, such as gcsfs or s3fs."
        ) from error


def GFile(name: Any, mode: str = "r") -> Any:
    """An open file, as `open` of Python gives it."""
    system, text = _place(name)
    return system.open(text, mode)


Open = GFile


def _on_path(name: str, method: str, text: str, **options: Any) -> Callable[[Any], Any]:
    def function(path: Any) -> Any:
        system, place = _place(path)
        return getattr(system, method)(place, **options)

    return published(function, name, text)


exists = _on_path("exists", "exists", "Whether there is a file or folder.")
isdir = _on_path("isdir", "isdir", "Whether there is a folder.")
mkdir = _on_path("mkdir", "mkdir", "Make a folder in one that is there.", create_parents=False)
makedirs = _on_path(
    "makedirs", "makedirs", "Make a folder, and those around it, unless it is there.", exist_ok=True
)
remove = _on_path("remove", "rm_file", "Remove a file.")
rmtree = _on_path("rmtree", "rm", "Remove a folder with all that is in it.", recursive=True)


def copy(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Copy a file.

    Raises:
        FileExistsError: If there is one already, and it shall not be replaced.
    """
    _check_free(dst, overwrite)
    (of_source, source), (of_target, target) = _place(src), _place(dst)
    if of_source is of_target is _Here:
        shutil.copyfile(source, target)
        return
    with of_source.open(source, "rb") as reader, of_target.open(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)


def rename(src: Any, dst: Any, overwrite: bool = False) -> None:
    """Give a file or folder another name.

    Raises:
        FileExistsError: If there is one already, and it shall not be replaced.
    """
    _check_free(dst, overwrite)
    system, text = _place(src)
    system.mv(text, _path_of(dst), recursive=True)


def _check_free(path: Any, overwrite: bool) -> None:
    if not overwrite and exists(path):
        raise FileExistsError(
            f"{_path_of(path)!r} is already there. Pass overwrite=True, or another path."
        )


def listdir(path: Any) -> list[str]:
    """The names in a folder, sorted."""
    system, text = _place(path)
    return sorted(name.rstrip("/").rpartition("/")[2] for name in system.ls(text, detail=False))


def glob(pattern: Any) -> list[str]:
    """The paths that fit a pattern, or one of several, sorted."""
    found: set[str] = set()
    for one in pattern if isinstance(pattern, list | tuple) else [pattern]:
        system, text = _place(one)
        if system is _Here:
            found.update(globbing.glob(text))
        else:
            scheme = text.partition("://")[0]
            found.update(f"{scheme}://{path}" for path in system.glob(text))
    return sorted(found)


def walk(
    top: Any, topdown: bool = True, onerror: Callable[[OSError], Any] | None = None
) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """A folder and those in it: for each its path, the names of its folders, and of its files."""
    system, text = _place(top)
    yield from os.walk(text, topdown, onerror) if system is _Here else system.walk(text)


def stat(path: Any) -> FileStatistics:
    """The size of a file, and when it was changed."""
    system, text = _place(path)
    if system is _Here:
        status = os.stat(text)
        return FileStatistics(status.st_size, status.st_mtime_ns, os.path.isdir(text))
    found = system.info(text)
    return FileStatistics(found.get("size") or 0, 0, found["type"] == "directory")


def join(path: Any, *paths: Any) -> str:
    """One path of several parts."""
    return os.path.join(_path_of(path), *map(_path_of, paths))


def get_registered_schemes() -> list[str]:
    """The schemes that paths may have: none, and those that fsspec knows."""
    try:
        known = importlib.import_module("fsspec").available_protocols()
    except ImportError:
        return ["", "file"]
    return ["", *known]


def read_file(filename: Any, name: str | None = None) -> HostTensor:
    """The bytes of a file."""
    with GFile(filename, "rb") as file:
        return HostTensor.of(file.read())


def write_file(filename: Any, contents: Any, name: str | None = None) -> None:
    """Write a file, and the folders around it."""
    folder = _path_of(filename).rpartition("/")[0]
    if folder:
        makedirs(folder)
    with named(_path_of(filename)), GFile(filename, "wb") as file:
        file.write(bytes_of(contents))


def matching_files(pattern: Any, name: str | None = None) -> HostTensor:
    """The paths that fit a pattern, sorted."""
    return HostTensor.of(np.array(glob(pattern), object))


def bytes_of(value: Any) -> bytes:
    """Bytes, of a text or an array of one."""
    found = value.item() if hasattr(value, "item") else value
    if found is None or isinstance(found, int | float):
        raise UsageError(f"Cannot read {found!r} as bytes. Pass bytes or text.")
    return found.encode() if isinstance(found, str) else bytes(found)


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = "uint8",
    name: str | None = None,
    expand_animations: bool = True,
) -> Any:
    """The pixels of a JPEG, PNG, BMP, GIF or WebP; of an animation the first picture.

    **Differs from TF:** where simplejpeg is not installed, Pillow decodes JPEGs, whose pixels may
    then be other ones by a few steps.
    """
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
    if ratio != 1:
        raise UsageError.of("ratio", "1", ratio, "Call `tf.image.resize` on the decoded image.")
    return decode_image(contents, channels)


def decode_and_crop_jpeg(
    contents: Any, crop_window: Any, channels: int = 0, *args: Any, **kwargs: Any
) -> Any:
    """A part of the pixels of a JPEG; see `decode_image`.

    Raises:
        UsageError: If the part is not in the picture.
    """
    pixels = decode_jpeg(contents, channels, *args, **kwargs)
    top, left, height, width = (int(number) for number in crop_window)
    bottom, right = top + height, left + width
    inside = 0 <= top < bottom <= pixels.shape[0] and 0 <= left < right <= pixels.shape[1]
    if not inside:
        raise UsageError(
            f"The crop window {[top, left, height, width]} is not inside an image of "
            f"{pixels.shape[:2]}. Pass its first row and column, its height and width."
        )
    return pixels[top:bottom, left:right]


def decode_gif(contents: Any, name: str | None = None) -> Any:
    """The pixels of all pictures of a GIF, each of three channels."""
    return hosted(decode_frames(bytes_of(contents)))


def decode_png(
    contents: Any, channels: int = 0, dtype: Any = "uint8", name: str | None = None
) -> Any:
    """The pixels of a PNG; see `decode_image`."""
    return decode_image(contents, channels, dtype)


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Any:
    """The pixels of a BMP; see `decode_image`."""
    return decode_image(contents, channels)


def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Any:
    """The bytes of a JPEG, without the density and the metadata."""
    if not 0 <= quality <= 100:
        raise UsageError.of("quality", "from 0 to 100", quality)
    subsampling = 2 if chroma_downsampling else 0
    options = {"progressive": progressive, "optimize": optimize_size, "subsampling": subsampling}
    return HostTensor.of(encode(np.asarray(image), "jpeg", quality=quality, **options))


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Any:
    """The bytes of a PNG."""
    level = {} if compression < 0 else {"compress_level": compression}
    return HostTensor.of(encode(np.asarray(image), "png", **level))


class DecodeWav(NamedTuple):
    """The samples of a WAV file, `[samples, channels]` from -1 to 1, and how many a second has."""

    audio: Any
    sample_rate: Any


def decode_wav(
    contents: Any, desired_channels: int = -1, desired_samples: int = -1, name: str | None = None
) -> DecodeWav:
    """The samples of a WAV file of 16 bits.

    Raises:
        UsageError: If these are not the bytes of a WAV file of 16 bits.
    """
    try:
        with wave.open(io.BytesIO(bytes_of(contents))) as file:
            frames, channels = file.readframes(file.getnframes()), file.getnchannels()
            if file.getsampwidth() != 2 or len(frames) != file.getnframes() * channels * 2:
                raise wave.Error(f"{8 * file.getsampwidth()} bits, {len(frames)} bytes of samples")
            rate = file.getframerate()
    except (wave.Error, EOFError) as error:
        raise UsageError(
            f"Cannot decode these bytes as a WAV file of 16 bits: {str(error) or 'too short'}. "
            "Read other formats with soundfile in `Dataset.map`."
        ) from None
    audio = np.frombuffer(frames, "<i2").reshape(-1, channels).astype(np.float32) / 2**15
    if desired_channels > 0:
        audio = audio[:, np.minimum(np.arange(desired_channels), channels - 1)]
    if desired_samples >= 0:
        missing = max(0, desired_samples - len(audio))
        audio = np.pad(audio[:desired_samples], [(0, missing), (0, 0)])
    return DecodeWav(hosted(audio), hosted(np.int32(rate)))


def encode_wav(audio: Any, sample_rate: Any, name: str | None = None) -> Any:
    """The bytes of a WAV file of 16 bits, of samples `[samples, channels]` from -1 to 1."""
    samples = np.asarray(audio, np.float32)
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((samples.shape[1], 2, int(sample_rate), 0, "NONE", ""))
        whole = np.trunc(samples * 2**15 + np.copysign(np.float32(0.5), samples))
        file.writeframes(np.clip(whole, -(2**15), 2**15 - 1).astype("<i2").tobytes())
    return HostTensor.of(stream.getvalue())


def decode_raw(
    input_bytes: Any,
    out_type: Any,
    little_endian: bool = True,
    fixed_length: int | None = None,
    name: str | None = None,
) -> Any:
    """Bytes as numbers; of several, a row each.

    Raises:
        UsageError: If the bytes are not a whole number of values, or the rows differ in length.
    """
    kind = numpy_dtype(out_type)
    if kind.hasobject:
        raise UsageError.of("out_type", "a type of numbers", out_type)
    given = np.asarray(input_bytes, object)
    texts, size = list(map(bytes_of, given.reshape(-1))), kind.itemsize
    if fixed_length is not None:
        width = static_size(fixed_length)
        if width < 1 or width % size:
            must_be = f"a positive multiple of {size}, the bytes of one {kind}"
            raise UsageError.of("fixed_length", must_be, fixed_length)
        texts = [text[:width].ljust(width, b"\0") for text in texts]
    lengths = {len(text) for text in texts} or {0}
    if len(lengths) > 1 or max(lengths) % size:
        raise UsageError(
            f"`input_bytes` must have one length, a multiple of {size}, the bytes of one {kind}; "
            f"got the lengths {sorted(lengths)}. Pass `fixed_length` to cut and pad them."
        )
    order = kind.newbyteorder("<" if little_endian else ">")
    numbers = np.frombuffer(b"".join(texts), order).astype(kind)
    return hosted(numbers.reshape(*given.shape, max(lengths) // size))


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

    Raises:
        UsageError: If a line has another number of columns.
    """
    lines = np.asarray(records, object)
    quoting = csv.QUOTE_MINIMAL if use_quote_delim else csv.QUOTE_NONE
    texts = [bytes_of(line).decode() for line in lines.reshape(-1)]
    rows = list(csv.reader(texts, delimiter=field_delim, quoting=quoting))
    if select_cols is not None:
        rows = [[row[column] for column in select_cols] for row in rows]
    if any(len(row) != len(record_defaults) for row in rows):
        raise UsageError(
            f"`record_defaults` has {len(record_defaults)} defaults for lines of "
            f"{sorted({len(row) for row in rows})} columns. Pass one default a column, or "
            "`select_cols`."
        )
    columns = zip(*rows, strict=True)
    return [
        _column(column, np.asarray(default).reshape(-1), na_value).reshape(lines.shape)
        for column, default in zip(columns, record_defaults, strict=True)
    ]


def _column(texts: Any, default: np.ndarray, missing: str) -> Any:
    kinds = {"f": np.float32, "i": np.int32, "O": object, "U": object, "S": object}
    found = np.empty(len(texts), kinds.get(default.dtype.kind, default.dtype))
    for place, text in enumerate(texts):
        found[place] = default[0] if text in ("", missing) else text
    return hosted(found)


class TFRecordOptions(str):
    """How a TFRecord file is compressed: the name of the compression.

    **Differs from TF:** how hard the compression tries cannot be set.
    """

    def __new__(
        cls,
        compression_type: str | None = None,
        flush_mode: int | None = None,
        input_buffer_size: int | None = None,
        output_buffer_size: int | None = None,
        window_bits: int | None = None,
        compression_level: int | None = None,
        compression_method: int | None = None,
        mem_level: int | None = None,
        compression_strategy: int | None = None,
    ) -> TFRecordOptions:
        return super().__new__(cls, compression_type or "")
