"""How `fit` gets on: the arithmetic with clocks of our own, and what Keras' bar shows of it."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._fit import steps
from replicax._fit.figures import Figures, Snapshot, WorkerStats, between
from replicax._fit.steps import Throughput, rows_of, throughput_of
from replicax._keras import _compat

from fitting import ROWS, TARGETS, dense_net, made
from helpers import wait_until


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def batches(self, count, seconds, rows=8):
        """Batches, each of which takes so long to come."""
        for _ in range(count):
            self.now += seconds
            yield np.ones((rows, 4), "float32"), np.ones((rows, 1), "float32")


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(steps, "clock", made)
    return made


class Log:
    """What a step returns; the devices may still compute it."""

    def __init__(self, ready=True):
        self.ready = ready

    def is_ready(self):
        return self.ready

    def block_until_ready(self):
        wait_until(self.is_ready)


def step(of, batches, seconds=0.0, log=None, clock=None):
    (batch,) = of.take(batches, 1)
    if clock is not None:
        clock.now += seconds
    of.record(1, rows_of(batch), {"loss": log or Log()})


def test_workers_that_wait_for_each_other():
    before = Snapshot(10.0, 5, 100, 1.0, WorkerStats(lateness=[0.0, 1.0, 7.0]))
    after = Snapshot(14.0, 13, 356, 2.0, WorkerStats(lateness=[0.5, 3.0, 7.0]))
    found = between(before, after)
    # 256 rows and 1 s of waiting in 4 s. For worker 1 the others wait 2 s: without it, 2 s.
    assert found == Figures(64.0, 0.25, slowest_worker=1, slowest_factor=2.0)
    assert str(found) == "64 ex/s · input 25 % · slowest worker 1 ×2.0"


def test_workers_of_parameter_servers():
    before = WorkerStats({}, {0: (10, 1.0), 1: (4, 4.0)}, {0: 5, 2: 1}, (10, 30))
    after = WorkerStats({}, {0: (20, 3.0), 1: (8, 8.0), 2: (10, 3.0)}, {0: 7, 2: 3}, (20, 110))
    found = between(Snapshot(0.0, members=before), Snapshot(2.0, 22, 0, 0.0, after))
    # Means of 0.2, 1 and 0.3 s: worker 1 takes 4 times the median of the others, 0.25 s.
    # 2 gradients are late by 0 and 2 by 2: 1 on average. 80 others for 10 closures.
    assert found.known() == {
        "data_wait": 0.0,
        "slowest_worker": 1,
        "slowest_factor": pytest.approx(4.0),
        "staleness": 1.0,
        "queue_depth": 8.0,
    }
    assert str(found) == "input 0 % · slowest worker 1 ×4.0 · staleness 1.0 · queue 8.0"


def test_what_is_not_known_is_not_said():
    assert (
        between(Snapshot(1.0), Snapshot(1.0, 3, 9))
        == between(Snapshot(1.0, 3), Snapshot(2.0, 3))
        == Figures()
    )
    one = WorkerStats(closures={1: (3, 1.0)}, staleness={0: 2})
    # The only worker is not the slowest, and a server that came back has counted less than before.
    found = between(
        Snapshot(0.0, members=WorkerStats(staleness={0: 9})), Snapshot(1.0, 1, 0, 0.0, one)
    )
    assert found.known() == {"data_wait": 0.0}
    assert str(Figures()) == ""
    assert [str(Figures(rate)) for rate in (0.25, 12.5, 12345.6)] == [
        "0.25 ex/s",
        "12.5 ex/s",
        "12,346 ex/s",
    ]


def test_the_first_step_of_an_epoch_does_not_count(clock):
    of, batches = Throughput(), clock.batches(9, seconds=1.0)
    step(of, batches, 60.0, clock=clock)  # it is compiled
    for _ in range(4):
        step(of, batches, 3.0, clock=clock)
    of.mark()
    # 32 rows in 16 s, of which 4 are those of the data.
    assert of.figures() == Figures(2.0, 0.25)
    of.begin()
    assert of.figures() == Figures()
    step(of, batches, 60.0, clock=clock)
    step(of, batches, 7.0, clock=clock)
    of.end()
    clock.now += 50.0  # validation
    assert of.figures() == Figures(1.0, 0.125)
    assert of.steps == 7


def test_data_that_comes_while_the_devices_are_busy_costs_nothing(clock):
    of, batches = Throughput(), clock.batches(3, seconds=1.0)
    step(of, batches)
    step(of, batches, log=Log(ready=False))  # 1 s of waiting
    step(of, batches)  # none: the devices have the step before to compute
    of.mark()
    assert of.figures().data_wait == 0.5


def test_other_workers_are_no_data(clock):
    of, waited = Throughput(), [0.0]
    of.others = lambda: waited[0]

    def batches():
        yield from clock.batches(1, 1.0)
        waited[0] += 3.0
        yield from clock.batches(1, 4.0)

    data = batches()
    step(of, data)
    step(of, data)
    of.mark()
    assert of.figures().data_wait == 0.25


def test_an_epoch_ends_when_its_last_step_has(clock):
    of, batches, last = Throughput(), clock.batches(2, 1.0), Log(ready=False)
    step(of, batches)
    step(of, batches, log=last)
    of.end()  # does not wait: validation goes on behind it
    clock.now += 7.0
    last.ready = True
    assert of.figures().examples_per_second == 1.0


def test_several_batches_are_taken_at_once(clock):
    of, batches = Throughput(), clock.batches(5, 1.0)
    assert [len(of.take(batches, 2)) for _ in range(3)] == [2, 2, 1]
    with pytest.raises(StopIteration):
        of.take(batches, 2)


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        ((np.ones((3, 2)), np.ones(4)), 3),
        (({"a": np.ones((5, 1))}, None), 5),
        ([[np.ones(2)]], 2),
        ((np.float32(1),), 0),
        ((), 0),
        (None, 0),
    ],
)
def test_rows_of_a_batch(batch, rows):
    assert rows_of(batch) == rows


class Ticking(keras.callbacks.Callback):
    """Half a second for each step, and a thousand for validation."""

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def on_train_batch_begin(self, batch, logs=None):
        self.clock.now += 0.5

    def on_test_begin(self, logs=None):
        throughput_of(self.model).figures()  # now the last step has ended
        self.clock.now += 1000.0


def test_the_bar_may_ask_while_the_end_of_an_epoch_is_begun(clock, monkeypatch):
    paced, log = Throughput(), Log(ready=False)
    start = steps.threading.Thread.start

    def asked(thread):
        paced.figures()
        start(thread)

    monkeypatch.setattr(steps.threading.Thread, "start", asked)
    paced.record(1, 8)
    paced.record(1, 8, {"loss": log})
    paced.end()
    log.ready = True
    assert paced.figures() is not None


@pytest.mark.parametrize("verbose", [1, 2])
@pytest.mark.parametrize("validation", [{}, {"validation_data": (ROWS, TARGETS)}])
def test_the_bar_says_it_behind_the_time_per_step(mirrored, capsys, clock, verbose, validation):
    model = made(mirrored, dense_net)
    history = model.fit(
        ROWS[:24],
        TARGETS[:24],
        batch_size=4,
        verbose=verbose,
        callbacks=[Ticking(clock)],
        **validation,
    )
    # 20 rows behind the first batch, in 2.5 s; they are there at once.
    assert "/step · 8 ex/s · input 0 % - loss: " in capsys.readouterr().out.splitlines()[-1]
    assert list(history.history) == ["loss", *(["val_loss"] if validation else [])]


def test_only_models_of_strategies_are_watched(mirrored, capsys):
    dense_net().fit(ROWS, TARGETS, batch_size=9, verbose=2)
    assert "ex/s" not in capsys.readouterr().out
    model = made(mirrored, dense_net)
    model.fit(ROWS, TARGETS, batch_size=9, verbose=0)
    model.evaluate(ROWS, TARGETS, batch_size=9, verbose=1)
    assert "ex/s" not in capsys.readouterr().out
    assert throughput_of(model).steps == 3


def test_steps_in_the_replica_view_count():
    options = rx.experimental.CommunicationOptions(compression="int8")
    model = made(rx.MultiWorkerMirroredStrategy(communication_options=options), dense_net)
    model.fit(ROWS, TARGETS, batch_size=9, verbose=0)
    found = throughput_of(model)
    assert (found.steps, found.snapshot().rows) == (3, 18)


def test_a_list_of_callbacks_may_have_no_model():
    callbacks = keras.callbacks.CallbackList([keras.callbacks.Callback()], model=None)
    callbacks.on_epoch_begin(0)
    callbacks.on_epoch_end(0, {"loss": 1.0})


@pytest.mark.parametrize(("columns", "shown"), [("60", False), ("200", True)])
def test_a_line_that_would_be_two_is_not_made_longer(monkeypatch, columns, shown):
    monkeypatch.setenv("COLUMNS", columns)
    bar = keras.utils.Progbar(4)
    bar._dynamic_display = True
    _compat.add_to_bar(bar, lambda: " · 5,312 ex/s · input 3 %", ())
    said = []
    for _ in range(3):
        bar._prev_total_width = 50 + (len(said[-1]) if said else 0)
        said.append(bar._format_time(0.1, "step").partition(" · ")[2])
        said[-1] = " · " + said[-1] if said[-1] else ""
    assert [bool(each) for each in said] == [shown] * 3
