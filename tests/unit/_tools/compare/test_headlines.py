"""Headlines that are made up: always the same, with known mistakes, and as numbers."""

from __future__ import annotations

import numpy as np
import pytest

from replicax._tools.compare import _data, _headlines
from replicax.report import Settings


def test_the_same_seed_makes_the_same_headlines():
    texts, labels = _headlines.headlines(3)
    again, same = _headlines.headlines(3)
    assert texts == again
    assert np.array_equal(labels, same)
    assert texts != _headlines.headlines(4)[0]


def test_every_headline_has_four_phrases_of_either_kind():
    texts, _ = _headlines.headlines(0)
    starts = ("Parliament", "The", "A ", "Doctors", "Aliens", "Secret", "Your", "Scientists")
    assert all(text.startswith(starts) for text in texts)
    assert {"Parliament", "Aliens"} <= {text.split()[0] for text in texts}


def test_labels_follow_the_words_but_for_some():
    texts, labels = _headlines.headlines(0)
    # Only sober headlines begin with these, but for the few with a phrase of the other kind
    # (1 in 5, of 4 places), and the wrong labels (1 in 20).
    sober = [text.startswith(("Parliament", "The ministry", "A committee")) for text in texts]
    share = np.mean(labels[sober] == _headlines.SOBER)
    assert share == pytest.approx(0.95 * 0.95 + 0.05 * 0.05, abs=0.03)


def test_words_become_numbers_from_1_in_the_order_of_the_alphabet():
    number_of = _headlines.vocabulary()
    assert list(number_of) == sorted(number_of)
    assert sorted(number_of.values()) == list(range(1, len(number_of) + 1))
    row, other = _headlines.as_numbers(["Aliens fear the truth", "The truth"])
    assert row[:4].tolist() == [number_of[word] for word in ("aliens", "fear", "the", "truth")]
    assert other[:2].tolist() == row[2:4].tolist()
    assert not row[4:].any()


def test_the_data_set_is_split_80_to_20():
    data = _data.load(Settings(dataset="headlines"))
    assert (len(data.train_inputs), len(data.test_inputs)) == (1600, 400)
    assert (data.classes, data.train_inputs.dtype) == (2, np.int32)
    assert data.train_inputs.max() < data.words
