"""What a user overrides and nobody calls is refused, with the method to override."""

import sys

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError
from replicax.tf import distribute

distribute.get_strategy()  # with the first strategy the checks are put in

X, Y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")


def model_of(strategy, **compiled):
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


@pytest.mark.parametrize(
    ("hook", "instead"),
    [
        ("_resource_apply_dense", "update_step"),
        ("_resource_apply_sparse", "update_step"),
        ("_prepare_local", "update_step"),
        ("_create_slots", "build"),
        ("get_updates", "update_step"),
        ("_aggregate_gradients", "apply"),
        ("_transform_loss", "scale_loss"),
    ],
)
def test_hooks_of_keras_2_are_refused_when_the_class_is_made(hook, instead):
    with pytest.raises(UsageError, match=rf"Mine\.{hook}.*`{instead}\("):
        type("Mine", (keras.optimizers.Adam,), {hook: lambda self, *args: None})


def test_a_rule_of_two_arguments_is_refused():
    with pytest.raises(UsageError, match=r"Mine\.update_step.*learning_rate"):
        type("Mine", (keras.optimizers.SGD,), {"update_step": lambda self, gradient, variable: 0})


def test_a_class_for_both_versions_is_made():
    class Both(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            self._resource_apply_dense(gradient, variable)

        def _resource_apply_dense(self, gradient, variable):
            variable.assign_sub(gradient)

    class Half(Both):
        def _resource_apply_dense(self, gradient, variable):
            variable.assign_sub(gradient / 2)

    class Reset(keras.metrics.Mean):
        def reset_state(self):
            super().reset_state()

        reset_states = reset_state

    assert Half(0.1).name
    assert Reset().name


@pytest.mark.parametrize("hook", ["apply_gradients", "minimize"])
def test_what_fit_does_not_call_is_refused_when_it_is_compiled(hook, mirrored):
    # In a loop of one's own it is called by that loop.
    mine = type("Mine", (keras.optimizers.SGD,), {hook: lambda self, *args, **options: None})
    with pytest.raises(UsageError, match=rf"Mine\.{hook}.*`apply\("):
        model_of(mirrored, optimizer=mine(0.1))


def made_before(base, **methods):
    """A class that the seam at its making has not seen, as if the program had made it first."""
    seam = base.__init_subclass__
    owner = next(k for k in base.__mro__ if "__init_subclass__" in vars(k))
    del owner.__init_subclass__
    try:
        return type("Early", (base,), methods)
    finally:
        owner.__init_subclass__ = classmethod(seam.__func__)


def test_a_class_that_was_made_before_is_refused_when_it_is_used(mirrored):
    early = made_before(keras.optimizers.Adam, _resource_apply_dense=lambda self, *args: None)
    with pytest.raises(UsageError, match=r"Early\._resource_apply_dense"):
        model_of(mirrored, optimizer=early())
    with mirrored.scope():
        weight, optimizer = keras.Variable([1.0]), early()
        optimizer.build([weight])
    with pytest.raises(UsageError, match=r"Early\._resource_apply_dense"):
        mirrored.run(lambda: optimizer.apply([weight * 2], [weight]))


@pytest.mark.parametrize("early", [False, True])
def test_reset_states_of_a_metric_is_called_by_its_name_of_today(mirrored, early):
    def reset_states(self):
        tf.keras.metrics.MeanSquaredError.reset_states(self)
        self.calls = getattr(self, "calls", 0) + 1

    made = made_before if early else lambda base, **methods: type("Mine", (base,), methods)
    metric = made(keras.metrics.MeanSquaredError, reset_states=reset_states)()
    model = model_of(mirrored, metrics=[metric])
    metric.update_state(Y, X)
    model.fit(X, Y, epochs=2, verbose=0)
    assert metric.calls == 2
    metric.reset_state()
    assert metric.calls == 3
    assert float(metric.result()) == 0.0


def test_a_metric_may_say_a_variable(mirrored):
    class Seen(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="seen")
            self.rows = self.add_weight(name="rows", initializer="zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.rows.assign_add(keras.ops.cast(keras.ops.shape(y_true)[0], "float32"))

        def result(self):
            return self.rows

    model = model_of(mirrored, metrics=[Seen()])
    assert model.fit(X, Y, batch_size=4, verbose=0).history["seen"] == [8.0]


def test_hooks_of_cross_device_ops_are_refused_when_the_class_is_made():
    with pytest.raises(UsageError, match=r"Mine\.reduce_implementation.*`combine"):
        type("Mine", (rx.CrossDeviceOps,), {"reduce_implementation": lambda self: None})


# What Keras 3 calls is called in every path of `fit`. -----------------------------------------

INT8 = rx.experimental.CommunicationOptions(compression="int8")
PATHS = {
    "mirrored": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1"]),
    "central storage": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
    "replica view": lambda: rx.MultiWorkerMirroredStrategy(communication_options=INT8),
    "parameter servers": lambda: rx.ParameterServerStrategy(
        engine="threads", num_workers=2, num_ps=1
    ),
}
# What is overridden together; a step of one's own is another path.
GROUPS = {
    "steps": (("train_step", "test_step", "predict_step"), ()),
    "loss and updates": (("compute_loss_and_updates",), ()),
    "parts": (
        ("compute_loss", "compute_metrics", "get_metrics_result"),
        ("apply", "update_step", "scale_loss"),
    ),
}


def telling(base, methods):
    """A subclass whose methods print that they were called, and do what they did.

    Printed, not kept: a class goes to servers as a copy, with all that its methods hold.
    """

    def method(name):
        original = getattr(base, name)

        def told(self, *args, **kwargs):
            sys.stdout.write(f"called {name}\n")
            return original(self, *args, **kwargs)

        return told

    return type("Telling", (base,), {name: method(name) for name in methods})


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("group", GROUPS)
def test_what_is_overridden_is_called_in_every_path_of_fit(path, group, capsys):
    of_model, of_optimizer = GROUPS[group]
    strategy = PATHS[path]()
    with strategy.scope():
        x = keras.Input((2,))
        model = telling(keras.Model, of_model)(x, keras.layers.Dense(1)(x))
        model.compile(telling(keras.optimizers.SGD, of_optimizer)(0.1), "mse", metrics=["mae"])
    try:
        model.fit(X, Y, batch_size=4, verbose=0)
        model.evaluate(X, Y, verbose=0)
        model.predict(X, verbose=0)
    finally:
        if path == "parameter servers":
            strategy.close()
    said = set(capsys.readouterr().out.splitlines())
    assert said >= {f"called {name}" for name in (*of_model, *of_optimizer)}
