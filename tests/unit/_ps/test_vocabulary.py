"""Which row each id has, against a dictionary."""

import numpy as np
import pytest

from replicax._ps.tables.vocabulary import Vocabulary


def test_ids_get_rows_in_their_order():
    vocabulary = Vocabulary()
    assert vocabulary.add(np.array([7, -1, 2**62])).tolist() == [0, 1, 2]
    assert vocabulary.find(np.array([2**62, 5, 7, 7, -1, -2])).tolist() == [2, -1, 0, 0, 1, -1]
    assert (len(vocabulary), vocabulary.rows) == (3, 3)


def test_rows_that_were_given_up_are_used_again():
    vocabulary = Vocabulary()
    vocabulary.add(np.arange(5))
    vocabulary.remove(np.array([3, 1]))
    assert vocabulary.used_rows().tolist() == [0, 2, 4]
    assert vocabulary.used_rows(without=np.array([2])).tolist() == [0, 4]
    assert sorted(vocabulary.add(np.array([10, 11, 12])).tolist()) == [1, 3, 5]
    assert vocabulary.ids_of(vocabulary.find(np.array([12, 0]))).tolist() == [12, 0]


@pytest.mark.parametrize("step", [1, 2**20, 2**40 + 1])
def test_it_agrees_with_a_dictionary(step):
    random = np.random.default_rng(0)
    vocabulary, expected = Vocabulary(), {}
    for _ in range(60):
        new = np.unique(random.integers(-1500, 1500, 200)) * step
        new = random.permutation(new[vocabulary.find(new) < 0])
        expected.update(zip(new.tolist(), vocabulary.add(new).tolist(), strict=True))
        assert sorted(expected.values()) == vocabulary.used_rows().tolist()
        gone = random.choice(
            vocabulary.used_rows(), random.integers(len(vocabulary)), replace=False
        )
        for number in vocabulary.ids_of(gone).tolist():
            expected.pop(number)
        vocabulary.remove(gone)
        asked = random.integers(-1600, 1600, 500) * step
        found = vocabulary.find(asked)
        assert found.tolist() == [expected.get(number, -1) for number in asked.tolist()]
        assert len(vocabulary) == len(expected)
    assert vocabulary.rows <= 3000  # rows were used again


def test_nothing_may_be_asked_for():
    vocabulary = Vocabulary()
    nothing = np.empty(0, np.int64)
    assert vocabulary.find(nothing).tolist() == []
    assert vocabulary.add(nothing).tolist() == []
    vocabulary.remove(nothing)
    assert len(vocabulary) == 0
