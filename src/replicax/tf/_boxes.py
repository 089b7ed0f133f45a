"""Boxes of images: chosen, cut out, drawn and sampled; functions of `tf.image`.

A box is (top, left, bottom, right), of numbers from 0 to 1 where an image is beside it.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.scipy.ndimage import map_coordinates

from replicax._core.errors import UsageError
from replicax.tf._calls import (
    array,
    arrays,
    concrete,
    hosted,
    in_models,
    static_shape,
    static_size,
)
from replicax.tf._image import size_of
from replicax.tf._random import stateless_uniform, uniform

# What TensorFlow draws boxes with, one after the other.
_COLORS = (
    (1, 1, 0, 1), (0, 0, 1, 1), (1, 0, 0, 1), (0, 1, 0, 1), (0.5, 0, 0.5, 1), (0.5, 0.5, 0, 1),
    (0.5, 0, 0, 1), (0, 0, 0.5, 1), (0, 1, 1, 1), (1, 0, 1, 1),
)  # fmt: skip


def _overlap(box: Any, boxes: Any) -> Any:
    """Intersection over union of a box with each."""
    low = jnp.minimum(boxes[:, :2], boxes[:, 2:]), jnp.minimum(box[:2], box[2:])
    high = jnp.maximum(boxes[:, :2], boxes[:, 2:]), jnp.maximum(box[:2], box[2:])
    edges = jnp.minimum(*high) - jnp.maximum(*low)
    shared = jnp.prod(jnp.maximum(edges, 0), axis=-1)
    own, other = jnp.prod(high[0] - low[0], axis=-1), jnp.prod(high[1] - low[1])
    union = own + other - shared
    there = (own > 0) & (other > 0)
    return jnp.where(there, shared / jnp.where(there, union, 1), 0.0)


def _chosen(
    boxes: Any, scores: Any, count: int, most_shared: Any, least_score: Any, sigma: Any = 0.0
) -> tuple[Any, Any, Any]:
    """The boxes of the largest scores that share little, their scores, and how many there are."""
    boxes, scores = jnp.asarray(boxes), jnp.asarray(scores)
    if boxes.shape != (*scores.shape, 4):
        raise UsageError(
            f"Each box needs one score, got boxes of shape {boxes.shape} and scores of shape "
            f"{scores.shape}. Pass shapes (n, 4) and (n,)."
        )
    if count < 0:
        raise UsageError.of("max_output_size", "at least 0", count)
    if isinstance(most_shared, int | float) and not 0 <= most_shared <= 1:
        raise UsageError.of("iou_threshold", "from 0 to 1", most_shared)
    if not scores.size:
        return jnp.zeros(count, jnp.int32), jnp.zeros(count, scores.dtype), jnp.int32(0)
    # Soft suppression lowers the scores of what overlaps.
    scale = jnp.where(jnp.asarray(sigma) > 0, -0.5 / jnp.maximum(sigma, 1e-30), 0.0)

    def choose(left: Any, _: Any) -> tuple[Any, Any]:
        best = jnp.argmax(left)
        score = left[best]
        shared = _overlap(boxes[best], boxes)
        # A sigma lowers scores and drops no box, as in TensorFlow.
        dropped = (shared > most_shared) & (scale == 0)
        lowered = jnp.where(dropped, -jnp.inf, left * jnp.exp(scale * shared**2))
        lowered = jnp.where(lowered > least_score, lowered, -jnp.inf).at[best].set(-jnp.inf)
        return lowered.astype(left.dtype), (best.astype(jnp.int32), score)

    left = jnp.where(scores > least_score, scores, -jnp.inf)
    _, (places, found) = lax.scan(choose, left, length=count)
    there = found > -jnp.inf
    return jnp.where(there, places, 0), jnp.where(there, found, 0), there.sum(dtype=jnp.int32)


def non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    name: str | None = None,
) -> Any:
    """The numbers of the boxes with the largest scores of those that overlap; not compiled.

    In compiled code, where sizes are known, use `non_max_suppression_padded`.
    """
    limits = iou_threshold, score_threshold
    return non_max_suppression_with_scores(boxes, scores, max_output_size, *limits)[0]


def non_max_suppression_with_scores(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    soft_nms_sigma: Any = 0.0,
    name: str | None = None,
) -> tuple[Any, Any]:
    """As `non_max_suppression`, with the scores, which a sigma lowers where boxes overlap."""
    concrete(scores, "tf.image.non_max_suppression")
    args = (boxes, scores, static_size(max_output_size), iou_threshold, score_threshold)
    places, found, count = _chosen(*args, soft_nms_sigma)
    return places[: int(count)], found[: int(count)]


def non_max_suppression_padded(
    boxes: Any,
    scores: Any,
    max_output_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    pad_to_max_output_size: bool = False,
    name: str | None = None,
    sorted_input: bool = False,
    canonicalized_coordinates: bool = False,
    tile_size: int = 512,
) -> tuple[Any, Any]:
    """As `non_max_suppression`, filled up with zeros, and how many there are; also of batches.

    **Differs from TF:** it is filled up always, as compiled code needs it.
    """
    count, boxes, scores = static_size(max_output_size), jnp.asarray(boxes), jnp.asarray(scores)

    def one(boxes: Any, scores: Any) -> tuple[Any, Any]:
        places, _, found = _chosen(boxes, scores, count, iou_threshold, score_threshold)
        return places, found

    for _ in range(boxes.ndim - 2):
        one = jax.vmap(one)
    return one(boxes, scores)


class CombinedNonMaxSuppression(NamedTuple):
    """The boxes of each image, with scores and classes, and how many there are."""

    nmsed_boxes: Any
    nmsed_scores: Any
    nmsed_classes: Any
    valid_detections: Any


def combined_non_max_suppression(
    boxes: Any,
    scores: Any,
    max_output_size_per_class: Any,
    max_total_size: Any,
    iou_threshold: Any = 0.5,
    score_threshold: Any = float("-inf"),
    pad_per_class: bool = False,
    clip_boxes: bool = True,
    name: str | None = None,
) -> CombinedNonMaxSuppression:
    """The best boxes of each class of each image, and of these the best; filled up with zeros."""
    boxes, scores = jnp.asarray(boxes), jnp.asarray(scores)
    each, total = static_size(max_output_size_per_class), static_size(max_total_size)
    classes = scores.shape[-1]
    each = min(each, scores.shape[1])
    total = min(total, each * classes) if pad_per_class else total

    def of_class(boxes: Any, scores: Any) -> tuple[Any, Any]:
        places, found, count = _chosen(boxes, scores, each, iou_threshold, score_threshold)
        return boxes[places], jnp.where(jnp.arange(each) < count, found, -jnp.inf)

    def of_image(boxes: Any, scores: Any) -> CombinedNonMaxSuppression:
        boxes = jnp.broadcast_to(boxes, (boxes.shape[0], classes, 4))
        kept, found = jax.vmap(of_class, 1)(boxes, scores)
        order = jnp.argsort(-found.ravel(), stable=True)[:total]
        order = jnp.pad(order, (0, total - len(order)))
        best = found.ravel()[order]
        there = (best > -jnp.inf) & (jnp.arange(total) < each * classes)
        kept = jnp.clip(kept, 0, 1) if clip_boxes else kept
        return CombinedNonMaxSuppression(
            jnp.where(there[:, None], kept.reshape(-1, 4)[order], 0),
            jnp.where(there, best, 0),
            jnp.where(there, order // each, 0).astype(scores.dtype),
            there.sum(dtype=jnp.int32),
        )

    return jax.vmap(of_image)(boxes, scores)


@in_models
def crop_and_resize(
    image: Any,
    boxes: Any,
    box_indices: Any,
    crop_size: Any,
    method: str = "bilinear",
    extrapolation_value: float = 0.0,
    name: str | None = None,
) -> Any:
    """Boxes of a batch of images, each cut out and resized.

    Raises:
        UsageError: If a number outside compiled code is of no image.
    """
    images, boxes = jnp.asarray(image).astype("float32"), jnp.asarray(boxes)
    size, old = size_of(crop_size, "crop_size"), images.shape[1:3]
    if method not in ("bilinear", "nearest"):
        raise UsageError.of("method", "'bilinear' or 'nearest'", method)
    box_indices, count = jnp.asarray(box_indices), images.shape[0]
    if not isinstance(box_indices, Tracer) and isinstance(count, int):
        known = np.asarray(box_indices)
        if known.shape != boxes.shape[:1] or not np.all((known >= 0) & (known < count)):
            raise UsageError.of("box_indices", f"{len(boxes)} numbers from 0 to {count - 1}", known)

    def along(axis: int) -> tuple[Any, Any]:
        begin, end, last = boxes[:, axis], boxes[:, axis + 2], old[axis] - 1
        steps = (
            np.linspace(0, 1, size[axis], dtype="float32") if size[axis] > 1 else np.array([0.5])
        )
        at = (begin[:, None] * (1 - steps) + end[:, None] * steps) * last
        return at, (at >= 0) & (at <= last)

    (rows, rows_there), (columns, columns_there) = along(0), along(1)

    def one(number: Any, rows: Any, columns: Any) -> Any:
        at, order = jnp.meshgrid(rows, columns, indexing="ij"), int(method != "nearest")
        pick = functools.partial(map_coordinates, coordinates=at, order=order, mode="nearest")
        return jax.vmap(pick, -1, -1)(images[number])

    found = jax.vmap(one)(box_indices, rows, columns)
    there = (rows_there[:, :, None] & columns_there[:, None])[..., None]
    return jnp.where(there, found, extrapolation_value)


def draw_bounding_boxes(images: Any, boxes: Any, colors: Any, name: str | None = None) -> Any:
    """A batch of images with the edges of boxes in it, in colors that take turns."""
    xp, (found, boxes) = arrays(images, boxes)
    if found.ndim != 4:
        raise UsageError.of("images", "a batch with four axes", tuple(found.shape))
    height, width, channels = found.shape[1:]
    table = np.asarray(_COLORS if colors is None else array(colors)[1], np.float32)[:, :channels]
    if colors is None and channels == 1:
        table = np.ones_like(table)
    edges = (boxes * np.array([height - 1, width - 1] * 2)).astype(int)
    y, x = np.arange(height)[:, None], np.arange(width)
    for number in range(boxes.shape[1]):
        top, left, bottom, right = (edges[:, number, i, None, None] for i in range(4))
        inside = (y >= top) & (y <= bottom) & (x >= left) & (x <= right)
        on_edge = inside & ((y == top) | (y == bottom) | (x == left) | (x == right))
        color = table[number % len(table)].astype(found.dtype)
        found = xp.where(on_edge[..., None], color, found)
    return hosted(found)


class DistortedBox(NamedTuple):
    """Where a sampled window begins, its size for `tf.slice`, and it as a box."""

    begin: Any
    size: Any
    bboxes: Any


def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: int | None = 0,
    min_object_covered: float = 0.1,
    aspect_ratio_range: Any = None,
    area_range: Any = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> DistortedBox:
    """A random window that covers a part of one of the boxes; the whole image if none is found.

    Raises:
        UsageError: If there are no boxes.
    """
    drawn = uniform([max_attempts or 100, 4], seed=seed or None)
    boxes = _some_boxes(bounding_boxes, use_image_if_no_bounding_boxes)
    return _sampled(drawn, image_size, boxes, min_object_covered, aspect_ratio_range, area_range)


def stateless_sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: Any,
    min_object_covered: float = 0.1,
    aspect_ratio_range: Any = None,
    area_range: Any = None,
    max_attempts: int | None = None,
    use_image_if_no_bounding_boxes: bool | None = None,
    name: str | None = None,
) -> DistortedBox:
    """As `sample_distorted_bounding_box`; equal seeds give equal results."""
    drawn = stateless_uniform([max_attempts or 100, 4], seed)
    boxes = _some_boxes(bounding_boxes, use_image_if_no_bounding_boxes)
    return _sampled(drawn, image_size, boxes, min_object_covered, aspect_ratio_range, area_range)


def _some_boxes(boxes: Any, use_image: bool | None) -> Any:
    found = array(boxes)[1].reshape(-1, 4)
    if not len(found) and not use_image:
        raise UsageError(
            "Cannot sample a window: there are no bounding boxes. Pass a box, or "
            "use_image_if_no_bounding_boxes=True."
        )
    return found if len(found) else np.array([[0, 0, 1, 1]], np.float32)


def _sampled(drawn: Any, image_size: Any, boxes: Any, covered: Any, ratios: Any, areas: Any) -> Any:
    xp, (drawn, boxes) = arrays(drawn, boxes)
    height, width, _ = static_shape(image_size)
    ratios, areas = ratios or (0.75, 1.33), areas or (0.05, 1.0)
    ratio = ratios[0] + drawn[:, 0] * (ratios[1] - ratios[0])
    least, most = (area * height * width for area in areas)
    high = xp.minimum(xp.round(xp.sqrt(most / ratio)), xp.minimum(height, width // ratio))
    low = xp.minimum(xp.round(xp.sqrt(least / ratio)), high)
    tall = xp.minimum(low + xp.floor(drawn[:, 1] * (high - low + 1)), high)
    wide = xp.round(tall * ratio)
    fits = (tall * wide >= least) & (tall * wide <= most) & (tall >= 1) & (wide >= 1)
    fits &= wide <= width
    top = xp.floor(drawn[:, 2] * (height - tall + 1))
    left = xp.floor(drawn[:, 3] * xp.maximum(width - wide + 1, 1))
    window = xp.stack([top, left, top + tall, left + wide], axis=-1)[:, None]
    scaled = boxes * np.array([height, width] * 2, np.float32)
    edges = xp.minimum(window[..., 2:], scaled[:, 2:]) - xp.maximum(window[..., :2], scaled[:, :2])
    own = (scaled[:, 2:] - scaled[:, :2]).prod(axis=-1)
    fits &= (xp.maximum(edges, 0).prod(axis=-1) >= covered * own).any(axis=-1)
    whole = np.array([0, 0, height, width], np.float32)
    found = xp.where(fits.any(), window[xp.argmax(fits), 0], whole)
    kind = np.int32
    begin = xp.concatenate([found[:2].astype(kind), np.zeros(1, kind)])
    size = xp.concatenate([(found[2:] - found[:2]).astype(kind), np.array([-1], kind)])
    return hosted(DistortedBox(begin, size, (found / whole[[2, 3, 2, 3]])[None, None]))
