"""A step is compiled while its first batch is being made; errors and numbers stay what they are."""

from __future__ import annotations

import contextlib
import threading

import jax
import keras
import numpy as np
import pytest

import replicax as rx

from fitting import ROWS, TARGETS
from helpers import run_python

ROWS, TARGETS = ROWS[:24], TARGETS[:24]


class Noting(keras.Sequential):
    """Counts the traces of its step, and says when there was one."""

    def __init__(self, *layers, fault=None):
        super().__init__([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
        self.traces, self.traced = [], threading.Event()
        self.fault = fault

    def train_step(self, state, data):
        self.traces.append(tuple(data[0].shape))
        self.traced.set()
        if self.fault is not None:
            raise self.fault
        return super().train_step(state, data)


def net(strategy, **kwargs):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = Noting(**kwargs)
        model.compile("sgd", "mse", metrics=["mae"])
    return model


def elements(waits_for=None):
    """A data set of rows that are made one by one, all but the first when something is done."""
    seen = []

    def generate():
        for number, row in enumerate(zip(ROWS, TARGETS, strict=True)):
            if number == 1 and waits_for is not None:
                seen.append(waits_for.wait(60))  # the limit is for one that never comes
            yield row

    dataset = rx.data.Dataset.from_generator(generate)
    return dataset, seen


@contextlib.contextmanager
def programs_compiled():
    found = []

    def heard(event, seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(about.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield found
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.parametrize("strategy", ["one_device", "mirrored_2"], indirect=True)
def test_a_step_is_compiled_once_and_before_its_first_batch_is_there(strategy):
    compiled = threading.Event()
    model = net(strategy)

    def heard(event, seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration" and model.traced.is_set():
            compiled.set()

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        data, seen = elements(compiled)
        with programs_compiled() as programs:
            history = model.fit(data.shuffle(12, seed=1).batch(8), epochs=2, verbose=0).history
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)
    assert seen == [True, True]  # at the begin of each epoch
    assert model.traces == [(8, 4)]
    assert len([name for name in programs if "program" in name]) == 1, programs
    # Batches that are there at once, in the same order: nothing is compiled before.
    batches = list(elements()[0].shuffle(12, seed=1).batch(8))
    again = net(strategy)
    found = again.fit(rx.data.Dataset.from_generator(lambda: batches), verbose=0).history
    assert found["loss"][0] == history["loss"][0]
    assert found["mae"][0] == history["mae"][0]


def test_in_a_process_with_one_device_a_step_is_compiled_once_too():
    # There the values of new variables are not bound to it, and those of a step are.
    said = run_python(
        """
        import threading
        import jax, keras, numpy as np, replicax as rx

        programs, compiled = [], threading.Event()

        def heard(event, seconds, **about):
            if event == "/jax/core/compile/backend_compile_duration":
                programs.append(about.get("fun_name", ""))
                if "program" in programs[-1]:
                    compiled.set()

        def generate():
            for number in range(16):
                if number == 1:
                    compiled.wait(60)  # the limit is for one that never comes
                yield np.ones(4, "float32"), np.ones(1, "float32")

        jax.monitoring.register_event_duration_secs_listener(heard)
        with rx.OneDeviceStrategy("CPU:0").scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(rx.data.Dataset.from_generator(generate).batch(8), verbose=0)
        print(len(jax.devices()), sum("program" in name for name in programs))
        """,
        JAX_NUM_CPU_DEVICES="1",
        JAX_PLATFORMS="cpu",
        RX_COMPILATION_CACHE="off",
    )
    assert said.split() == ["1", "1"]


@pytest.mark.parametrize(
    ("change", "shapes"),
    [
        (lambda data: data.batch(8).prefetch(1), [(8, 4)]),
        (lambda data: data.batch(8, drop_remainder=True).repeat(2), [(8, 4)]),
        (lambda data: data.map(lambda x, y: (x * 2, y)).batch(9), [(9, 4), (6, 4)]),
        (lambda data: data.batch(100), [(24, 4)]),  # fewer than a batch
    ],
    ids=["prefetched", "repeated", "mapped", "one batch"],
)
def test_data_of_other_pipelines_is_compiled_for_as_it_comes(mirrored, change, shapes):
    model = net(mirrored)
    model.fit(change(elements()[0]), verbose=0)
    # What was expected and did not come is a program more, and no error.
    assert [shape for shape in model.traces if shape in shapes] == shapes


def test_other_loops_and_several_steps_at_once_find_what_was_compiled(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=3)
    inputs = elements()[0].map(lambda x, y: x).batch(8)
    with programs_compiled() as programs:
        history = model.fit(
            elements()[0].batch(8), validation_data=elements()[0].batch(8), verbose=0
        )
        found = model.predict(inputs, verbose=0)
    assert len([name for name in programs if "program" in name]) == 3, programs
    expected = ROWS @ model.get_weights()[0] + model.get_weights()[1]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    loss = np.mean((expected - TARGETS) ** 2)
    np.testing.assert_allclose(history.history["val_loss"][0], loss, rtol=1e-5)


def test_the_error_of_a_step_is_that_of_the_usual_way(mirrored):
    model = net(mirrored, fault=ArithmeticError("of the user"))
    data, _ = elements(model.traced)
    with pytest.raises(ArithmeticError, match="of the user"):
        model.fit(data.batch(8), verbose=0)
    model.fault = None
    model.fit(elements()[0].batch(8), verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


def test_an_interrupt_while_a_step_is_compiled_ends_training(mirrored):
    model = net(mirrored, fault=KeyboardInterrupt())
    data, _ = elements(model.traced)
    with pytest.raises(KeyboardInterrupt):
        model.fit(data.batch(8), verbose=0)
    assert model.traces == [(8, 4)]
    model.fault = None
    model.fit(elements()[0].batch(8), verbose=0)
    assert np.isfinite(model.get_weights()[0]).all()


class Begun(keras.callbacks.Callback):
    """What of the data was made when training began."""

    def __init__(self):
        super().__init__()
        self.made, self.at_begin = [], []

    def on_train_begin(self, logs=None):
        self.at_begin.append(len(self.made))


def test_callbacks_begin_behind_the_first_batch(mirrored):
    begun = Begun()

    def generate():
        for row in zip(ROWS, TARGETS, strict=True):
            begun.made.append(row)
            yield row

    model = net(mirrored)
    model.fit(rx.data.Dataset.from_generator(generate).batch(8), callbacks=[begun], verbose=0)
    assert begun.at_begin[0] >= 8


def test_the_error_of_data_is_that_of_data_before_anything_begins(mirrored):
    begun = Begun()

    def generate():
        yield ROWS[0], TARGETS[0]
        raise ArithmeticError("of the data")

    model = net(mirrored)
    with pytest.raises(ArithmeticError, match="of the data"):
        model.fit(rx.data.Dataset.from_generator(generate).batch(8), callbacks=[begun], verbose=0)
    assert begun.at_begin == []


@pytest.mark.parametrize("given", [{}, {"steps_per_epoch": 2}, {"steps_per_epoch": 4}])
def test_several_steps_at_once_are_compiled_for_if_there_are_so_many(given):
    with rx.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=4)
    with programs_compiled() as programs:
        model.fit(elements()[0].repeat().batch(8).take(4), **given, verbose=0)
    assert len([name for name in programs if "program" in name]) == 1, programs


def test_a_model_that_is_not_built_waits_for_its_first_batch(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(elements()[0].batch(8), verbose=0)
    assert model.count_params() == 5


def test_class_weights_are_part_of_a_batch_that_nobody_expects(mirrored):
    labels = np.arange(24) % 2
    rows = iter(zip(ROWS, labels, strict=True))
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = rx.data.Dataset.from_generator(lambda: rows).batch(8)
    history = model.fit(data, class_weight={0: 0.0, 1: 0.0}, verbose=0).history
    assert history["loss"] == [0.0]
