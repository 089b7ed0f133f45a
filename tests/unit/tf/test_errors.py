"""`tf.errors`: what programs catch is what is raised here."""

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

CODES = [name for name in dir(tf.errors) if name.isupper()]


@pytest.mark.parametrize("name", sorted({*dir(tf.errors)} - {*CODES}))
def test_every_name_is_an_error(name):
    assert issubclass(getattr(tf.errors, name), Exception)


def test_every_kind_has_a_number():
    assert sorted(getattr(tf.errors, name) for name in CODES) == list(range(17))
    assert (tf.errors.OK, tf.errors.INVALID_ARGUMENT, tf.errors.DATA_LOSS) == (0, 3, 15)


def test_the_end_of_an_iterator(mirrored):
    data = rx.data.Dataset.range(4).batch(2)
    for iterator in (iter(data), iter(mirrored.experimental_distribute_dataset(data))):
        steps = 0
        try:
            while True:
                iterator.get_next()
                steps += 1
        except tf.errors.OutOfRangeError as error:
            assert "end of its data" in str(error)
        assert steps == 2
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize(
    ("name", "raised"),
    [
        ("NotFoundError", lambda: tf.io.read_file("no such file")),
        ("InvalidArgumentError", lambda: tf.debugging.assert_equal(1, 2)),
        ("DataLossError", lambda: tf.io.decode_png(b"")),
        ("OperatorNotAllowedInGraphError", lambda: rx.function(float)(np.float32(1))),
        ("OpError", lambda: rx.MirroredStrategy(["CPU:99"])),
    ],
)
def test_what_is_raised_is_caught(name, raised):
    with pytest.raises(getattr(tf.errors, name)):
        raised()


def test_errors_of_devices():
    assert tf.errors.ResourceExhaustedError is jax.errors.JaxRuntimeError
