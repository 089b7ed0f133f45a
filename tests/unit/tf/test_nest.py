"""Nests as TensorFlow walks them: keys in order, None is a value."""

from collections import OrderedDict, namedtuple

import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError

Pair = namedtuple("Pair", "x y")
NEST = {"b": [1, None], "a": Pair((2,), {"z": 3})}


def test_values_come_in_the_order_of_sorted_keys():
    assert tf.nest.flatten(NEST) == [2, 3, 1, None]
    assert tf.nest.flatten(5) == [5]
    assert tf.nest.flatten({2: "x", "a": "y"}) == ["x", "y"]  # cannot be sorted


def test_values_are_put_back():
    packed = tf.nest.pack_sequence_as(NEST, [10, 20, 30, 40])
    assert packed == {"b": [30, 40], "a": Pair((10,), {"z": 20})}
    assert list(packed) == ["b", "a"]
    ordered = tf.nest.map_structure(lambda x: x + 1, OrderedDict(b=1, a=2))
    assert type(ordered) is OrderedDict and ordered == OrderedDict(b=2, a=3)


def test_several_nests_are_walked_together():
    found = tf.nest.map_structure(lambda x, y: x * y, {"a": [1, 2]}, {"a": [3, 4]})
    assert found == {"a": [3, 8]}
    assert tf.nest.map_structure(lambda x, y: x, (1,), [2], check_types=False) == (1,)


def test_what_is_a_nest():
    found = [tf.nest.is_nested(x) for x in ([], (), {}, "text", None, tf.ones(1))]
    assert found == [True, True, True, False, False, False]
    assert not tf.nest.is_nested(tf.TensorShape([1]))


@pytest.mark.parametrize("other", [[1, 2], (1, [2]), {"a": 1}, 5, (1, 2, 3)])
def test_other_forms_are_refused(other):
    with pytest.raises(UsageError, match="structures"):
        tf.nest.assert_same_structure((1, 2), other)


def test_other_numbers_of_values_are_refused():
    with pytest.raises(UsageError, match="1 values"):
        tf.nest.pack_sequence_as([1, 2], [1])


def test_there_must_be_a_nest():
    with pytest.raises(UsageError, match="no structure"):
        tf.nest.map_structure(len)
