"""Losses over some classes of very many: `tf.nn.sampled_softmax_loss`, `nce_loss`, and what draws.

The classes are drawn by `tf.random`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.lookup import embedding_lookup
from replicax.tf._calls import static_size
from replicax.tf._random import uniform


class Candidates(NamedTuple):
    """Classes that are drawn, and how often true ones and these are expected among them."""

    sampled_candidates: Any
    true_expected_count: Any
    sampled_expected_count: Any


def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Classes below `range_max`, each as likely as the others."""
    size = static_size(range_max)
    return _drawn(np.full(size, 1 / size), true_classes, num_sampled, unique, seed)


def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Classes below `range_max`, the smaller the likelier, as words by their frequency are.

    **Differs from TF:** where each is drawn once, expected counts are those of the expected number
    of draws.
    """
    ranks = np.arange(static_size(range_max))
    likely = np.log1p(1 / (ranks + 1)) / np.log1p(len(ranks))
    return _drawn(likely, true_classes, num_sampled, unique, seed)


def _drawn(likely: np.ndarray, true: Any, count: Any, unique: bool, seed: int | None) -> Candidates:
    count = static_size(count)
    if unique and count > len(likely):
        raise UsageError(
            f"Cannot draw {count} different classes of {len(likely)}. Draw fewer, or pass "
            "unique=False."
        )
    if unique:
        noise = -jnp.log(
            -jnp.log(jnp.maximum(jnp.asarray(uniform([len(likely)], seed=seed)), 1e-30))
        )
        found = jax.lax.top_k(jnp.log(jnp.asarray(likely, "float32")) + noise, count)[1]
        tries = _tries(likely, count)
        expected = -np.expm1(tries * np.log1p(-np.minimum(likely, 1 - 1e-12)))
    else:
        drawn = jnp.asarray(uniform([count], seed=seed))
        found = jnp.searchsorted(jnp.asarray(np.cumsum(likely)[:-1], "float32"), drawn, "right")
        expected = likely * count
    expected, found = jnp.asarray(expected, "float32"), found.astype("int32")
    return Candidates(found, expected[jnp.asarray(true)], expected[found])


def _tries(likely: np.ndarray, count: int) -> float:
    """How many draws give this many different classes."""
    low, high = float(count), 2.0**40
    for _ in range(60):
        middle = (low + high) / 2
        met = -np.expm1(middle * np.log1p(-np.minimum(likely, 1 - 1e-12))).sum()
        low, high = (middle, high) if met < count else (low, middle)
    return high


def _logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    sampled: Candidates,
    remove_hits: bool,
) -> tuple[Any, Any]:
    """Logits of the true classes and of those that are drawn, and the labels of both."""
    labels, inputs = jnp.asarray(labels), jnp.asarray(inputs)
    true = labels.reshape(len(inputs), -1)
    drawn = jax.lax.stop_gradient(jnp.asarray(sampled.sampled_candidates))
    every = jnp.concatenate([true.ravel(), drawn.astype(true.dtype)])
    rows, shifts = embedding_lookup(weights, every), embedding_lookup(biases, every)
    own = rows[: true.size].reshape(*true.shape, -1)
    of_true = jnp.einsum("bd,btd->bt", inputs, own) + shifts[: true.size].reshape(true.shape)
    of_drawn = inputs @ rows[true.size :].T + shifts[true.size :]
    of_true = of_true - jnp.log(jnp.asarray(sampled.true_expected_count).reshape(true.shape))
    of_drawn = of_drawn - jnp.log(jnp.asarray(sampled.sampled_expected_count))
    if remove_hits:
        hits = (true[:, :, None] == drawn).any(axis=1)
        of_drawn = jnp.where(hits, jnp.finfo(of_drawn.dtype).min, of_drawn)
    wanted = jnp.full_like(of_true, 1 / true.shape[1]), jnp.zeros_like(of_drawn)
    return jnp.concatenate([of_true, of_drawn], 1), jnp.concatenate(wanted, 1)


def _candidates(
    labels: Any, num_true: int, num_sampled: int, num_classes: int, given: Any, seed: int | None
) -> Candidates:
    if given is not None:
        return Candidates(*given)
    return log_uniform_candidate_sampler(labels, num_true, num_sampled, True, num_classes, seed)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    seed: int | None = None,
    name: str = "sampled_softmax_loss",
) -> Any:
    """The softmax loss over the true classes and some that are drawn, for training."""
    found = _candidates(labels, num_true, num_sampled, num_classes, sampled_values, seed)
    logits, wanted = _logits(weights, biases, labels, inputs, found, remove_accidental_hits)
    return -jnp.sum(wanted * jax.nn.log_softmax(logits), axis=-1)


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    name: str = "nce_loss",
) -> Any:
    """The noise-contrastive loss: true classes against some that are drawn.

    The arguments are as in `sampled_softmax_loss`.
    """
    found = _candidates(labels, num_true, num_sampled, num_classes, sampled_values, None)
    logits, wanted = _logits(weights, biases, labels, inputs, found, remove_accidental_hits)
    losses = jax.nn.relu(logits) - logits * wanted + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return jnp.sum(losses, axis=-1)
