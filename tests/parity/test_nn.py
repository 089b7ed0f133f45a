"""Functions of `tf.nn` that no recorded result has, against sums by hand."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

n = tf.nn
RNG = np.random.default_rng(0)


def same(found, expected, **tolerance):
    np.testing.assert_allclose(
        np.asarray(found), expected, **{"rtol": 2e-5, "atol": 2e-5} | tolerance
    )


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_blocks(make):
    x = make(np.arange(4, dtype="float32").reshape(1, 1, 1, 4))
    same(n.depth_to_space(x, 2)[0, :, :, 0], [[0, 1], [2, 3]])
    y = make(RNG.normal(size=(2, 4, 6, 3)).astype("float32"))
    same(n.depth_to_space(n.space_to_depth(y, 2), 2), y)
    first = n.space_to_depth(np.moveaxis(np.asarray(y), -1, 1), 2, "NCHW")
    same(first, np.moveaxis(np.asarray(n.space_to_depth(y, 2)), -1, 1))
    z = make(np.arange(1, 17).reshape(1, 4, 4, 1))
    found = n.space_to_batch(z, [2, 2], [[0, 0], [0, 0]])
    assert found.shape == (4, 2, 2, 1)
    assert found[1, :, :, 0].tolist() == [[2, 4], [10, 12]]
    padded = n.space_to_batch(y, [2, 4], [[0, 0], [1, 1]])
    same(n.batch_to_space(padded, [2, 4], [[0, 0], [1, 1]]), y)


def test_transposed_convolutions_spread_each_number():
    one = n.conv1d_transpose([[[1.0], [2.0]]], np.array([[[1.0]], [[10.0]]]), [1, 4, 1], 2)
    same(one[0, :, 0], [1, 10, 2, 20])
    cube = n.conv3d_transpose(
        np.ones([1, 1, 1, 1, 1], "float32"), np.ones([2, 2, 2, 1, 1], "float32"), [1, 2, 2, 2, 1], 2
    )
    same(cube, np.ones([1, 2, 2, 2, 1]))
    x = RNG.normal(size=(1, 6, 6, 1)).astype("float32")
    wide = n.atrous_conv2d(x, np.ones([2, 2, 1, 1], "float32"), 3, "VALID")
    same(wide[..., 0], x[:, :3, :3, 0] + x[:, 3:, :3, 0] + x[:, :3, 3:, 0] + x[:, 3:, 3:, 0])


def test_moments_by_sums():
    x = RNG.normal(size=(4, 3)).astype("float32")
    for shift in (None, 2.0):
        found = n.normalize_moments(*n.sufficient_statistics(x, [0], shift))
        same(found[0], x.mean(0))
        same(found[1], x.var(0))


def test_local_response_normalization():
    x = RNG.normal(size=(1, 1, 2, 5)).astype("float32")
    expected = [
        x[..., c] / (1 + 0.5 * (x[..., max(0, c - 2) : c + 3] ** 2).sum(-1)) ** 0.75
        for c in range(5)
    ]
    same(n.local_response_normalization(x, 2, 1, 0.5, 0.75), np.stack(expected, -1))


@pytest.mark.parametrize("blank", [None, -1, 1])
def test_ctc_is_the_sum_over_all_alignments(blank):
    logits = RNG.normal(size=(4, 2, 3)).astype("float32")
    place = (blank or 0) % 3
    classes = [c for c in range(3) if c != place]
    labels, lengths = [[classes[0], classes[0]], [classes[1], classes[0]]], ([2, 1], [4, 3])
    chances = np.exp(logits - np.log(np.exp(logits).sum(-1, keepdims=True)))
    expected = []
    for row in range(2):
        wanted, steps = labels[row][: lengths[0][row]], lengths[1][row]
        total = 0.0
        for path in itertools.product(range(3), repeat=steps):
            merged = [c for c, _ in itertools.groupby(path) if c != place]
            if merged == wanted:
                total += np.prod([chances[t, row, c] for t, c in enumerate(path)])
        expected.append(-np.log(total))
    same(n.ctc_loss(labels, logits, *lengths, blank_index=blank), expected, rtol=1e-4)
    swapped = n.ctc_loss(labels, logits.swapaxes(0, 1), *lengths, False, blank_index=blank)
    same(swapped, expected, rtol=1e-4)


def test_sampled_losses_of_given_classes():
    weights, biases = RNG.normal(size=(6, 3)), RNG.normal(size=6)
    inputs, labels = RNG.normal(size=(2, 3)), np.array([[1], [4]])
    given = (np.array([4, 0]), np.array([[0.5], [0.25]]), np.array([0.25, 0.75]))
    args = [np.asarray(one, "float32") for one in (weights, biases)]
    args += [labels, inputs.astype("float32"), 2, 6]
    logits = inputs @ weights[[1, 4, 4, 0]].T + biases[[1, 4, 4, 0]]
    rows = np.stack([logits[0, [0, 2, 3]], logits[1, [1, 2, 3]]])
    rows -= np.log([[0.5, 0.25, 0.75], [0.25, 0.25, 0.75]])
    signs = np.array([[1, -1, -1]])
    found = n.nce_loss(*args, sampled_values=given)
    same(found, np.log1p(np.exp(-signs * rows)).sum(1))
    rows[1, 1] = -np.inf  # class 4 is true there
    found = n.sampled_softmax_loss(*args, sampled_values=given)
    same(found, np.log(np.exp(rows).sum(1)) - rows[:, 0])
    drawn = rx.function(lambda x: n.sampled_softmax_loss(*args[:3], x, 2, 6))(args[3])
    assert drawn.shape == (2,) and np.isfinite(drawn).all()


def test_samplers():
    r = tf.random
    found = r.log_uniform_candidate_sampler([[0], [9]], 1, 10, True, 10)
    assert sorted(found.sampled_candidates.tolist()) == list(range(10))
    many = r.log_uniform_candidate_sampler([[0], [9]], 1, 20000, False, 10)
    likely = np.log((np.arange(10) + 2) / (np.arange(10) + 1)) / np.log(11)
    same(np.bincount(many.sampled_candidates, minlength=10) / 20000, likely, rtol=0.15)
    same(many.true_expected_count, 20000 * likely[[[0], [9]]])
    same(r.uniform_candidate_sampler([[3]], 1, 4, False, 8).true_expected_count, [[0.5]])
    with pytest.raises(rx.errors.UsageError):
        r.uniform_candidate_sampler([[3]], 1, 9, True, 8)


def test_safe_look_up():
    table = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    same(n.safe_embedding_lookup_sparse(table, jnp.array([[0, 1], [-1, -1]])), [[2, 3], [0, 0]])
