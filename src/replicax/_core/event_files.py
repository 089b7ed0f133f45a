"""TensorBoard's event files without TensorFlow: the writer, and the content of summaries."""

from __future__ import annotations

import atexit
import importlib
import struct
import time
import weakref
import zlib
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core import folder, host_calls
from replicax._core.errors import needs

if TYPE_CHECKING:
    from pathlib import Path

BUCKETS = 30


@final
class EventFile:
    """The event file of one run; up to `queue` events wait to be written, for up to `seconds`."""

    def __init__(self, logdir: str | Path, queue: int, seconds: float, suffix: str) -> None:
        with folder.named(str(logdir)):
            self._own = part("summary.writer.event_file_writer").EventFileWriter(
                str(logdir), queue, seconds, suffix
            )
        self._end = weakref.finalize(self, _end, self._own)
        # At exit weakref.finalize would be too late for callbacks of compiled code.
        atexit.register(self._end)

    def add(
        self, tag: str, kind: str, tensor: np.ndarray, step: int, description: str = ""
    ) -> None:
        summary = part("compat.proto.summary_pb2")
        classes = {"images": summary.DATA_CLASS_BLOB_SEQUENCE, "scalars": summary.DATA_CLASS_SCALAR}
        metadata = summary.SummaryMetadata(
            plugin_data=summary.SummaryMetadata.PluginData(plugin_name=kind),
            summary_description=description,
            data_class=classes.get(kind, summary.DATA_CLASS_TENSOR),
        )
        proto = part("util.tensor_util").make_tensor_proto(tensor)
        value = summary.Summary.Value(tag=tag, tensor=proto, metadata=metadata)
        self._add(step=int(step), summary=summary.Summary(value=[value]))

    def add_graph(self, graph: Any) -> None:
        self._add(graph_def=graph.SerializeToString())

    def _add(self, **content: Any) -> None:
        event = part("compat.proto.event_pb2").Event(wall_time=time.time(), **content)
        with folder.named(self._own.get_logdir()):
            self._own.add_event(event)

    def flush(self) -> None:
        """Write all events, also those of callbacks that compiled code has still to make."""
        if self._end.alive:
            host_calls.flush()
            with folder.named(self._own.get_logdir()):
                self._own.flush()

    def close(self) -> None:
        self._end()


def _end(own: Any) -> None:
    host_calls.flush()
    with folder.named(own.get_logdir()):
        own.close()


def histogram(data: Any, buckets: int, numpy: Any) -> Any:
    """Rows of (from, to, how many) for the values of an array; `numpy` computes it."""
    flat = data.reshape(-1)
    if not flat.size:
        return numpy.zeros((buckets, 3))
    flat = flat.astype(numpy.result_type(flat.dtype, numpy.float32))
    low, high = flat.min(), flat.max()
    width = (high - low) / buckets
    # One value alone stands in the last bucket.
    place = numpy.where(width > 0, (flat - low) / numpy.where(width > 0, width, 1), buckets)
    place = numpy.clip(place.astype(numpy.int32), 0, buckets - 1)
    counts = (place[:, None] == numpy.arange(buckets)).sum(0)
    edges = low + width * numpy.arange(buckets + 1)
    ends = [*([edges[1:-1]] if buckets > 1 else []), high[None]]
    return numpy.stack([edges[:-1], numpy.concatenate(ends), counts.astype(flat.dtype)], axis=1)


def pixels(images: Any, count: int, numpy: Any) -> Any:
    """The first images as whole numbers from 0 to 255; floating-point ones are from 0 to 1."""
    kept = images[:count]
    if kept.dtype == numpy.uint8:
        return kept
    return numpy.clip(kept * 255.5, 0, 255).astype(numpy.uint8)


def images_of(batch: np.ndarray) -> np.ndarray:
    """Images in an event: width, height, and a PNG for each."""
    height, width = batch.shape[1:3]
    parts = [str(width).encode(), str(height).encode(), *map(png, batch)]
    return np.array(parts, dtype=object)


def png(image: np.ndarray) -> bytes:
    """A PNG of an array of uint8, of the shape (height, width, 1 to 4 channels)."""
    height, width, channels = image.shape
    color = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = b"".join(b"\0" + row.tobytes() for row in np.ascontiguousarray(image))
    header = struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def part(name: str) -> Any:
    with needs("Writing summaries", extra="tensorboard"):
        return importlib.import_module(f"tensorboard.{name}")
