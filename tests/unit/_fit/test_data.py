"""Distributed data sets as Keras' loops read them."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit.data import HostAdapter, adapted
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat

from fitting import ROWS, TARGETS

BATCHES = [(np.arange(5), np.ones((5, 2))), (np.arange(1), np.ones((1, 2)))]


class Batches:
    num_batches = 2

    def host_batches(self):
        return iter(BATCHES)


def original(x, y=None, sample_weight=None, batch_size=None, shuffle=False, class_weight=None):
    return "Keras' own"


choose = _compat.calling(adapted, original)


def test_every_epoch_reads_all_batches():
    adapter = choose(x=Batches())
    assert isinstance(adapter, _compat.DataAdapter)
    for read in (adapter.get_numpy_iterator, adapter.get_jax_iterator, adapter.get_jax_iterator):
        assert [x.tolist() for x, _ in read()] == [[0, 1, 2, 3, 4], [0]]


def test_what_keras_asks_about_a_data_set():
    adapter = HostAdapter(Batches())
    assert adapter.num_batches == 2
    assert adapter.batch_size is None
    assert adapter.has_partial_batch is None
    assert adapter.partial_batch_size is None
    adapter.on_epoch_begin()
    adapter.on_epoch_end()


@pytest.mark.parametrize("value", [None, 3, [1], np.arange(2), {"host_batches": 1}], ids=repr)
def test_anything_else_is_left_to_keras(value):
    assert choose(value, batch_size=3) == "Keras' own"


@pytest.mark.parametrize("beside", [{"y": np.ones(3)}, {"sample_weight": [1]}], ids=repr)
def test_what_a_data_set_has_inside_is_not_taken_beside_it(beside):
    (name,) = beside
    with pytest.raises(rx.errors.UsageError, match="Cannot pass `") as caught:
        choose(Batches(), **beside)
    assert f"`{name}`" in str(caught.value)
    choose(Batches(), y=None, sample_weight=None, batch_size=4)


def test_a_look_at_the_first_batch_takes_none_away():
    class Once(Batches):
        def __init__(self):
            self.passes = [iter([1, 2, 3]), iter([4, 5, 6])]

        def host_batches(self):
            return self.passes.pop(0)

    for looks in (1, 2):
        adapter = HostAdapter(Once())
        look = adapter.get_numpy_iterator()
        for _ in range(looks):
            next(look)
        adapter.end_look()  # whoever may still have `look`
        assert list(adapter.get_numpy_iterator()) == [1, 2, 3]
        assert list(adapter.get_numpy_iterator()) == [4, 5, 6]


def test_a_look_that_reads_all_takes_none_away():
    batches = iter([1])

    class Once(Batches):
        def host_batches(self):
            return batches

    adapter = HostAdapter(Once())
    assert list(adapter.get_numpy_iterator()) == [1]  # one was placed ahead: it met the end
    adapter.end_look()
    assert list(adapter.get_numpy_iterator()) == [1]


def test_a_short_pass_is_no_look():
    class Once(Batches):
        num_batches = 1

        def __init__(self):
            self.passes = [iter([1]), iter([2])]

        def host_batches(self):
            return self.passes.pop(0)

    adapter = HostAdapter(Once())
    adapter.end_look()  # there was none: the model was built
    for expected in (1, 2):
        batches = adapter.get_numpy_iterator()
        assert next(batches) == expected  # all that Keras takes, which knows the number
        adapter.end_look()


def test_fit_has_every_batch_though_somebody_keeps_what_keras_looked_through(monkeypatch):
    kept = []  # as a thread does that reads the stacks of others
    seam = HostAdapter.get_jax_iterator
    monkeypatch.setattr(
        HostAdapter, "get_jax_iterator", lambda self: kept.append(seam(self)) or kept[-1]
    )
    strategy = rx.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    rows = ((np.ones((1, 2), "float32"), np.ones((1, 1), "float32")) for _ in range(4))
    dataset = rx.data.Dataset.from_generator(lambda: rows, ("float32", "float32"))
    steps = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: steps.append(batch)
    )
    model.fit(dataset, callbacks=[count], verbose=0)
    assert len(kept) == 2
    assert steps == [0, 1, 2, 3]


def test_an_empty_data_set_is_an_error():
    class Nothing(Batches):
        def host_batches(self):
            return iter(())

    with pytest.raises(rx.errors.UsageError, match="no batches"):
        list(HostAdapter(Nothing()).get_numpy_iterator())


class Labels(Batches):
    labels = np.array([0, 2, 2, 1])

    def host_batches(self):
        return iter([(np.zeros((4, 2)), self.labels)])


def test_rows_are_weighted_by_their_class():
    adapter = HostAdapter(Labels(), {0: 2.0, 1: 0.5})
    ((_, _, weights),) = adapter.get_numpy_iterator()
    assert weights.tolist() == [2.0, 1.0, 1.0, 0.5]


@pytest.mark.parametrize(
    "batch", [np.ones(3), (np.ones(3),), (np.ones(3),) * 3, (np.ones(3), (np.ones(3), np.ones(3)))]
)
def test_what_cannot_be_weighted_by_its_class(batch):
    class One(Batches):
        def host_batches(self):
            return iter([batch])

    with pytest.raises(rx.errors.UsageError, match="`class_weight` with a batch of"):
        list(HostAdapter(One(), {0: 1.0}).get_numpy_iterator())


class Unknown(Batches):
    num_batches = None


def epochs_of(dataset, steps=None):
    """An epoch iterator of Keras, with the seams."""
    install_hooks()
    return _compat.EpochIterator(HostAdapter(dataset), steps_per_epoch=steps)


@pytest.mark.parametrize("lengths", [[3, 2, 1], [2, 3, 4]], ids=["shrinking", "growing"])
def test_an_end_that_was_not_announced_is_no_surprise(lengths):
    left = list(lengths)

    class Changing(Unknown):
        def host_batches(self):
            return iter(range(left.pop(0)))

    epochs = epochs_of(Changing())
    assert [len(list(epochs)) for _ in range(3)] == lengths


@pytest.mark.parametrize(("dataset", "steps"), [(Unknown(), 3), (Batches(), 3)])
def test_fewer_batches_than_were_announced_are_a_warning(dataset, steps):
    with pytest.warns(UserWarning, match="Your input ran out of data"):
        list(epochs_of(dataset, steps))


def rows_made_one_by_one(made):
    for row in zip(ROWS[:24], TARGETS[:24], strict=True):
        made.append(row)
        yield row


def net(strategy, *, units=1, built=True, loss="mse"):
    with strategy.scope():
        inputs = [keras.Input((4,))] if built else []
        model = keras.Sequential([*inputs, keras.layers.Dense(units)])
        model.compile("sgd", loss)
    return model


class Begun(keras.callbacks.Callback):
    """What of the data was made when training began."""

    def __init__(self):
        super().__init__()
        self.made, self.at_begin = [], []

    def on_train_begin(self, logs=None):
        self.at_begin.append(len(self.made))


def test_callbacks_begin_behind_the_first_batch(mirrored):
    begun = Begun()
    data = rx.data.Dataset.from_generator(lambda: rows_made_one_by_one(begun.made)).batch(8)
    net(mirrored).fit(data, callbacks=[begun], verbose=0)
    assert begun.at_begin[0] >= 8


def test_the_error_of_data_comes_before_anything_begins(mirrored):
    begun = Begun()

    def generate():
        yield ROWS[0], TARGETS[0]
        raise ArithmeticError("of the data")

    data = rx.data.Dataset.from_generator(generate).batch(8)
    with pytest.raises(ArithmeticError, match="of the data"):
        net(mirrored).fit(data, callbacks=[begun], verbose=0)
    assert begun.at_begin == []


def test_a_model_is_built_from_its_first_batch(mirrored):
    model = net(mirrored, built=False)
    model.fit(rx.data.Dataset.from_generator(lambda: rows_made_one_by_one([])).batch(8), verbose=0)
    assert model.count_params() == 5


def test_classes_are_weighted_in_data_that_is_read_once(mirrored):
    rows = iter(zip(ROWS[:24], np.arange(24) % 2, strict=True))
    model = net(
        mirrored, units=2, loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    data = rx.data.Dataset.from_generator(lambda: rows).batch(8)
    assert model.fit(data, class_weight={0: 0.0, 1: 0.0}, verbose=0).history["loss"] == [0.0]
