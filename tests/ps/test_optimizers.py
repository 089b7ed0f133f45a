"""Optimizers on parameter servers give what Keras' own give: one worker, no staleness, five steps.

The gradients are the same ones, drawn at random: what is compared is what becomes of them.
"""

import re

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

optimizers = keras.optimizers
partitioners = rx.experimental.partitioners
STEPS = 5
SHAPES = {"kernel": (4, 3), "bias": (3,)}


def without_bias(optimizer):
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def halving():
    return optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)


# They update each row by itself, so that rows may be on several servers.
BY_ROWS = {
    "sgd": lambda: optimizers.SGD(0.1),
    "nesterov": lambda: optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: optimizers.Adam(0.1, amsgrad=True),
    "adamw": lambda: without_bias(optimizers.AdamW(0.1, weight_decay=0.1)),
    "adagrad": lambda: optimizers.Adagrad(0.1),
    "rmsprop": lambda: optimizers.RMSprop(0.1, momentum=0.5, centered=True),
    "adadelta": lambda: optimizers.Adadelta(0.5),
    "adamax": lambda: optimizers.Adamax(0.1),
    "nadam": lambda: optimizers.Nadam(0.1),
    "ftrl": lambda: optimizers.Ftrl(0.1, l1_regularization_strength=0.01, beta=0.1),
    "lion": lambda: optimizers.Lion(0.1),
    "clipnorm": lambda: optimizers.SGD(0.1, clipnorm=0.5),
    "global_clipnorm": lambda: optimizers.Adagrad(0.1, global_clipnorm=0.5),
    "clipvalue": lambda: optimizers.SGD(0.1, clipvalue=0.3),
    "ema": lambda: optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9, ema_overwrite_frequency=2),
    "accumulation": lambda: optimizers.Adam(0.1, gradient_accumulation_steps=2),
    "schedule": lambda: optimizers.SGD(halving()),
    "loss_scale": lambda: optimizers.SGD(0.1, loss_scale_factor=2.0),
}
# They look at a variable as a whole.
WHOLE = {
    "lamb": lambda: optimizers.Lamb(0.1),
    "adafactor": lambda: optimizers.Adafactor(0.1),
    "muon": lambda: optimizers.Muon(0.1),
}
CONSTRAINED = {"constraint": lambda: optimizers.Adagrad(0.5)}
# Of the others, one with slots, one without, and those that have what is one for all variables.
ON_ONE_SERVER = {
    **WHOLE,
    **CONSTRAINED,
    **{name: BY_ROWS[name] for name in ("clipnorm", "adamw", "nadam", "accumulation", "schedule")},
}


def draw(seed, shape):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def trained(makers, how, *, build=False):
    """The optimizers' variables, and those they have trained; `how` runs a function."""
    variables, made = {}, {name: make() for name, make in makers.items()}
    for name, optimizer in made.items():
        constraint = keras.constraints.NonNeg() if name in CONSTRAINED else None
        variables[name] = [keras.Variable(draw(7, s), name=n) for n, s in SHAPES.items()]
        for variable in variables[name]:
            variable.constraint = constraint
        if build:
            optimizer.build(variables[name])

    @rx.function
    def step(grads):
        for name, optimizer in made.items():
            optimizer.apply(grads, variables[name])

    for number in range(STEPS):
        how(step, [draw([number, 1], shape) for shape in SHAPES.values()])
    return {
        name: [(v.name, np.asarray(v.value)) for v in [*variables[name], *made[name].variables]]
        for name in makers
    }


def by_strategy(makers, partitioner, servers):
    strategy = rx.ParameterServerStrategy(
        variable_partitioner=partitioner,
        engine="threads",
        num_workers=1,
        num_ps=servers,
        max_staleness=0,
    )
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        found = trained(makers, lambda fn, grads: coordinator.schedule(fn, (grads,)).fetch())
    strategy.close()
    return found


@pytest.fixture(scope="module")
def expected():
    makers = {**BY_ROWS, **WHOLE, **CONSTRAINED}
    return trained(makers, lambda fn, grads: fn(grads), build=True)


@pytest.fixture(scope="module")
def divided():
    """What the rows of each variable become on two servers."""
    return by_strategy(BY_ROWS, partitioners.FixedShardsPartitioner(2), 2)


@pytest.fixture(scope="module")
def whole():
    return by_strategy(ON_ONE_SERVER, None, 1)


def assert_same(found, expected):
    assert [without_numbers(name) for name, _ in found] == [
        without_numbers(name) for name, _ in expected
    ]
    for (name, value), (_, other) in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-9, err_msg=name)


def without_numbers(name):
    """A name without the number that Keras gives a second variable of one name."""
    return re.sub(r"_\d+$", "", name)


@pytest.mark.parametrize("name", BY_ROWS)
def test_rows_on_two_servers(name, divided, expected):
    assert_same(divided[name], expected[name])


@pytest.mark.parametrize("name", ON_ONE_SERVER)
def test_a_variable_on_one_server(name, whole, expected):
    assert_same(whole[name], expected[name])


def test_something_was_trained(expected):
    """All these optimizers do something, and each another thing."""
    results = {tuple(variables[0][1].ravel().tolist()) for variables in expected.values()}
    assert len(results) == len(expected)


@pytest.mark.parametrize("name", WHOLE)
def test_what_looks_at_a_whole_variable_is_refused_for_rows(name, refused):
    with pytest.raises(UsageError, match=f"in shards with {name.capitalize()}: its update"):
        refused(WHOLE[name]())


def test_a_constraint_is_refused_for_rows(refused):
    with pytest.raises(UsageError, match=r"with SGD: the constraint MaxNorm"):
        refused(optimizers.SGD(), keras.constraints.MaxNorm())


def test_what_decides_by_all_gradients_is_refused(refused):
    with pytest.raises(UsageError, match="LossScaleOptimizer"):
        refused(optimizers.LossScaleOptimizer(optimizers.SGD()))
    with pytest.raises(UsageError, match="gradient_accumulation_steps"):
        refused(optimizers.SGD(clipnorm=1.0, gradient_accumulation_steps=2))


class Hidden(optimizers.SGD):
    """It keeps a variable where nobody looks."""

    def build(self, variables):
        super().build(variables)
        self.hidden = [[self.add_variable((), name="hidden")]]


def test_an_optimizer_that_hides_its_variables_is_refused(refused):
    with pytest.raises(UsageError, match="Hidden"):
        refused(Hidden())


@pytest.fixture
def refused(started):
    """Schedules a step with an optimizer, of a variable in two shards."""
    strategy = started(partitioners.FixedShardsPartitioner(2))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)

    def schedule(optimizer, constraint=None):
        with strategy.scope():
            variable = keras.Variable(draw(7, (4, 3)), name="kernel")
            variable.constraint = constraint
        step = rx.function(lambda grad: optimizer.apply([grad], [variable]))
        coordinator.schedule(step, (draw(8, (4, 3)),))

    return schedule
