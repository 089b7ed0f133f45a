"""How many elements each transformation says that there are, and of what shapes.

The numbers are those of tf.data 2.21, where a comment does not say otherwise.
"""

import jax
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset
INFINITE, UNKNOWN = rx.data.INFINITE_CARDINALITY, rx.data.UNKNOWN_CARDINALITY


def unknown(n=5):
    return Dataset.range(n).filter(lambda x: True)


def endless():
    return Dataset.range(3).repeat()


def fold(state, x):
    return state + x, state


# What a transformation says of five elements, of infinitely many, of unknown many, of none.
SAID = {
    "take": (lambda ds: ds.take(3), 3, 3, UNKNOWN, 0),
    "take all": (lambda ds: ds.take(-1), 5, INFINITE, UNKNOWN, 0),
    "take none": (lambda ds: ds.take(0), 0, 0, 0, 0),  # tf.data: of unknown many, unknown
    "skip": (lambda ds: ds.skip(2), 3, INFINITE, UNKNOWN, 0),
    "skip all": (lambda ds: ds.skip(-1), 0, 0, 0, 0),  # tf.data: -1 and -2 of endless and unknown
    "repeat": (lambda ds: ds.repeat(2), 10, INFINITE, UNKNOWN, 0),
    "repeat never": (lambda ds: ds.repeat(0), 0, 0, 0, 0),
    "repeat endlessly": (lambda ds: ds.repeat(), INFINITE, INFINITE, INFINITE, 0),
    "batch": (lambda ds: ds.batch(2), 3, INFINITE, UNKNOWN, 0),
    "whole batches": (lambda ds: ds.batch(2, True), 2, INFINITE, UNKNOWN, 0),
    "padded_batch": (lambda ds: ds.padded_batch(2), 3, INFINITE, UNKNOWN, 0),
    "shard": (lambda ds: ds.shard(3, 1), 2, INFINITE, UNKNOWN, 0),
    "shuffle": (lambda ds: ds.shuffle(3), 5, INFINITE, UNKNOWN, 0),
    "cache": (lambda ds: ds.cache(), 5, INFINITE, UNKNOWN, 0),
    "prefetch": (lambda ds: ds.prefetch(1), 5, INFINITE, UNKNOWN, 0),
    "map": (lambda ds: ds.map(lambda x: x), 5, INFINITE, UNKNOWN, 0),
    "map in threads": (lambda ds: ds.map(lambda x: x, 2), 5, INFINITE, UNKNOWN, 0),
    "enumerate": (lambda ds: ds.enumerate(), 5, INFINITE, UNKNOWN, 0),
    "window": (lambda ds: ds.window(3, 2), 3, INFINITE, UNKNOWN, 0),
    "whole windows": (lambda ds: ds.window(3, 2, 1, True), 2, INFINITE, UNKNOWN, 0),
    "scan": (lambda ds: ds.scan(np.int64(0), fold), 5, INFINITE, UNKNOWN, 0),
    "options": (lambda ds: ds.with_options(rx.data.Options()), 5, INFINITE, UNKNOWN, 0),
    # tf.data says unknown of none, too.
    "filter": (lambda ds: ds.filter(lambda x: True), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "take_while": (lambda ds: ds.take_while(lambda x: True), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "flat_map": (lambda ds: ds.flat_map(Dataset.range), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "interleave": (lambda ds: ds.interleave(Dataset.range), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "rebatch": (lambda ds: ds.batch(2).rebatch(3), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "unbatch": (lambda ds: ds.batch(2).unbatch(), UNKNOWN, INFINITE, UNKNOWN, 0),
    "zip": (lambda ds: Dataset.zip(ds, Dataset.range(4)), 4, 4, UNKNOWN, 0),
    "zip unknown": (lambda ds: Dataset.zip(ds, unknown()), UNKNOWN, UNKNOWN, UNKNOWN, 0),
    "zip endless": (lambda ds: Dataset.zip(ds, endless()), 5, INFINITE, UNKNOWN, 0),
    "concatenate": (lambda ds: ds.concatenate(Dataset.range(2)), 7, INFINITE, UNKNOWN, 2),
    "concatenate unknown": (
        lambda ds: ds.concatenate(unknown()), UNKNOWN, INFINITE, UNKNOWN, UNKNOWN,
    ),
    "concatenate endless": (lambda ds: ds.concatenate(endless()), *[INFINITE] * 4),
    # Of known numbers, tf.data says unknown.
    "sample": (
        lambda ds: Dataset.sample_from_datasets([ds, Dataset.range(2)]), 7, INFINITE, UNKNOWN, 2,
    ),
    "sample to the first end": (
        lambda ds: Dataset.sample_from_datasets([ds, ds], stop_on_empty_dataset=True),
        UNKNOWN, INFINITE, UNKNOWN, 0,
    ),
    # tf.data says infinite if one of the data sets is, whatever the choices are.
    "choose": (
        lambda ds: Dataset.choose_from_datasets([ds, ds], Dataset.range(2).repeat(2)),
        UNKNOWN, 4, UNKNOWN, 0,
    ),
    "choose endlessly": (
        lambda ds: Dataset.choose_from_datasets([ds, ds], endless().shard(3, 0)),
        UNKNOWN, INFINITE, UNKNOWN, 0,
    ),
}  # fmt: skip

INPUTS = [lambda: Dataset.range(5), endless, unknown, lambda: Dataset.range(0)]


def fits(spec, element):
    """Whether an element is of a spec, or a window of elements of it."""
    if isinstance(spec, rx.data.ArraySpec):
        if isinstance(element, Dataset):
            return all(fits(spec, member) for member in element)
        if spec.dtype in (str, bytes):
            return isinstance(element, spec.dtype)
        shape = np.shape(element)
        return (
            len(shape) == len(spec.shape)
            and all(n in (None, m) for n, m in zip(spec.shape, shape, strict=True))
            and element.dtype == spec.dtype
        )
    specs, tree = jax.tree.flatten(spec)
    parts = tree.flatten_up_to(element)
    return all(fits(s, part) for s, part in zip(specs, parts, strict=True))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SAID)
@pytest.mark.parametrize("way", [lambda ds: ds, lambda ds: ds.map(lambda x: x)])
def test_as_many_elements_as_said_of_the_shape_that_was_said(name, way):
    transform, *numbers = SAID[name]
    for make, said in zip(INPUTS, numbers, strict=True):
        ds = transform(way(make()))
        assert ds.cardinality() == said
        elements = list(ds.take(50))
        if said == INFINITE:
            assert len(elements) == 50
        elif said != UNKNOWN:
            assert len(elements) == said == len(ds)
        if elements:
            assert all(fits(ds.element_spec, element) for element in elements)


def test_sources_say_how_many_rows_they_have():
    assert Dataset.from_tensors(1).cardinality() == 1
    assert Dataset.from_tensor_slices(np.zeros((4, 2))).cardinality() == 4
    assert Dataset.from_source([1, 2]).cardinality() == 2
    generated = Dataset.from_generator(lambda: iter([1]))
    assert generated.cardinality() == UNKNOWN
    assert generated.repeat().cardinality() == INFINITE


@pytest.mark.parametrize(
    ("ds", "shape"),
    [
        (lambda ds: ds.batch(2), (None, 3)),
        (lambda ds: ds.batch(2, drop_remainder=True), (2, 3)),
        (lambda ds: ds.batch(2, drop_remainder=True).batch(2), (None, 2, 3)),
        (lambda ds: ds.batch(2).unbatch(), (3,)),
        (lambda ds: ds.batch(2).rebatch(3), (None, 3)),
        (lambda ds: ds.batch(2).rebatch(3, drop_remainder=True), (3, 3)),
        (lambda ds: ds.batch(2).rebatch([3, 1], drop_remainder=True), (None, 3)),
        (lambda ds: ds.padded_batch(2), (None, None)),
        (lambda ds: ds.padded_batch(2, [4], drop_remainder=True), (2, 4)),
        (lambda ds: ds.padded_batch(2, [-1]), (None, None)),
        (lambda ds: ds.batch(2).map(lambda x: x[:, :2]), (None, 2)),
        (lambda ds: ds.batch(2).map(lambda x: x.sum()), ()),
        (lambda ds: ds.batch(2, drop_remainder=True).map(lambda x: x * 2), (2, 3)),
        (lambda ds: ds.batch(2).filter(lambda x: True).prefetch(1).map(lambda x: x), (None, 3)),
    ],
)
def test_shapes_of_batches(ds, shape):
    made = ds(Dataset.from_tensor_slices(np.zeros((5, 3))))
    assert made.element_spec == rx.data.ArraySpec(shape, np.float64)
    assert all(fits(made.element_spec, batch) for batch in made)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", SAID)
def test_of_nothing_comes_nothing_or_what_was_added(name):
    """Also where it is not known before it is read."""
    transform, *_, said = SAID[name]
    elements = list(transform(unknown(0)).take(20))
    if name in ("concatenate unknown", "concatenate endless"):
        said = len(elements)
    assert len(elements) == said


@pytest.mark.parametrize(
    ("ds", "size"),
    [  # where the global batch size comes from, as in tf.distribute
        (Dataset.range(8).batch(4), 4),
        (Dataset.range(8).batch(4).map(lambda x: x), None),
        (Dataset.range(8).padded_batch(4).repeat().prefetch(2), 4),
        (Dataset.range(8).batch(4).shuffle(2).take(1).skip(1).cache().filter(bool), 4),
        (Dataset.zip(Dataset.range(8).batch(4), Dataset.range(8).batch(4)), 4),
        (Dataset.zip(Dataset.range(8).batch(4), Dataset.range(8).batch(5)), None),
        (Dataset.range(8).batch(4).concatenate(Dataset.range(8).batch(4)), 4),
        (Dataset.range(8).batch(4).concatenate(Dataset.range(8).batch(2)), None),
        (Dataset.range(8).batch(4).rebatch(2), 2),
        (Dataset.range(8).batch(4).rebatch([2, 1]), None),
        (Dataset.range(8).batch(4).unbatch(), None),
        (Dataset.range(8), None),
        (Dataset.sample_from_datasets([Dataset.range(8).batch(4)] * 2), 4),
    ],
)
def test_the_batch_size_is_known_where_batches_stay_what_they_are(ds, size):
    assert ds.node.batch_size == size


def test_a_number_of_elements_is_read_as_a_tensor():
    found = rx.data.experimental.cardinality(Dataset.range(5))
    assert (found, found.numpy(), type(found.numpy())) == (5, 5, np.int64)
    assert unknown().cardinality().numpy() == UNKNOWN
