"""`replicax.data` under every strategy: in custom loops and in `fit`, and resumed in the middle."""

import pickle

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.data import AutoShardPolicy, Dataset

from fitting import dense_net, made, weight_difference
from helpers import local, three_strategies, two_replicas


def policy(name):
    options = rx.data.Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[name]
    return options


def pieces(strategy, batch):
    return [part.tolist() for part in local(strategy, batch)]


def epoch(strategy, dataset):
    return [pieces(strategy, batch) for batch in dataset]


# Custom loops.


def test_every_policy_gives_every_row_once(strategy):
    for name in ("AUTO", "DATA", "OFF"):
        dataset = Dataset.range(17).batch(5).with_options(policy(name))
        seen = epoch(strategy, strategy.experimental_distribute_dataset(dataset))
        assert [row for step in seen for part in step for row in part] == list(range(17))


@two_replicas
def test_the_policy_decides_how_the_last_batch_is_cut(strategy):
    dataset = Dataset.range(14).batch(8)
    auto = epoch(strategy, strategy.experimental_distribute_dataset(dataset))
    assert auto[-1] == [[8, 9, 10], [11, 12, 13]]  # 35
    off = dataset.with_options(policy("OFF"))
    assert epoch(strategy, strategy.experimental_distribute_dataset(off))[-1] == [
        [8, 9, 10, 11],
        [12, 13],
    ]  # 35


def test_a_data_set_of_single_rows_is_refused(mirrored):
    dataset = mirrored.experimental_distribute_dataset(Dataset.range(4))
    with pytest.raises(rx.errors.UnbatchedInput, match="`batch`"):
        next(iter(dataset))  # 61


@two_replicas
def test_the_plan_can_be_asked_for(strategy):
    plan = strategy.experimental_distribute_dataset(Dataset.range(9).batch(5)).plan()
    assert (plan.policy, plan.rows) == (AutoShardPolicy.DATA, ((3, 2),))
    made = strategy.distribute_datasets_from_function(lambda _: Dataset.range(9).batch(2))
    with pytest.raises(rx.errors.UsageError, match="InputContext"):
        made.plan()


# Positions.


def shuffled():
    return Dataset.range(40).shuffle(13, seed=2).batch(6).map(lambda x: x * 2)


def drained(strategy, iterator):
    return [row for batch in iterator for part in pieces(strategy, batch) for row in part]


@three_strategies
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_loop_resumes_at_the_exact_sample(strategy, ahead):
    options = rx.InputOptions(experimental_per_replica_buffer_size=ahead)

    def distributed():
        return strategy.experimental_distribute_dataset(shuffled(), options)

    dataset = distributed()
    list(dataset)
    iterator = iter(dataset)  # the second epoch
    for _ in range(3):
        next(iterator)
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    rest, following = drained(strategy, iterator), drained(strategy, dataset)

    resumed = distributed()
    again = iter(resumed)
    again.set_state(state)
    assert drained(strategy, again) == rest
    assert drained(strategy, resumed) == following


def test_foreign_batches_resume_too(mirrored):
    batches = [np.arange(4) + 4 * number for number in range(5)]

    class Numbers(keras.utils.PyDataset):
        def __len__(self):
            return len(batches)

        def __getitem__(self, index):
            return batches[index]

    for value in (batches, Numbers(), lambda: iter(batches)):
        dataset = mirrored.experimental_distribute_dataset(value)
        iterator = iter(dataset)
        next(iterator)
        next(iterator)
        again = iter(dataset)
        again.set_state(iterator.get_state())
        assert drained(mirrored, again) == list(range(8, 20))


def test_an_order_without_a_seed_goes_on_elsewhere():
    strategies = rx.MirroredStrategy(["CPU:0", "CPU:1"]), rx.OneDeviceStrategy("CPU:0")
    datasets = [
        strategy.experimental_distribute_dataset(Dataset.range(30).shuffle(30).batch(4))
        for strategy in strategies
    ]
    first, again = map(iter, datasets)
    next(first)
    again.set_state(first.get_state())
    assert drained(strategies[1], again) == drained(strategies[0], first)
    assert drained(strategies[1], datasets[1]) == drained(strategies[0], datasets[0])


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: iter(Dataset.range(9).batch(3)).get_state(), "Build the pipeline as it was"),
        *((lambda wrong=wrong: wrong, "`state`") for wrong in ({}, {"epoch": 1}, [3], [])),
    ],
)
def test_what_is_no_position_of_the_pipeline_is_refused(mirrored, wrong, named):
    iterator = iter(mirrored.experimental_distribute_dataset(shuffled()))
    with pytest.raises(rx.errors.UsageError, match=named):
        iterator.set_state(wrong())


def test_a_position_of_pipelines_per_replica_is_for_as_many_replicas():
    mode = rx.InputOptions(experimental_replication_mode=rx.InputReplicationMode.PER_REPLICA)
    states = {}
    for devices in (2, 3):
        strategy = rx.MirroredStrategy([f"CPU:{i}" for i in range(devices)])
        dataset = strategy.distribute_datasets_from_function(
            lambda context: Dataset.range(10 * context.input_pipeline_id, 100).batch(2), mode
        )
        iterator = iter(dataset)
        next(iterator)
        states[devices] = iterator.get_state()
    again = iter(dataset)
    again.set_state(states[3])
    assert pieces(strategy, next(again)) == [[2, 3], [12, 13], [22, 23]]
    with pytest.raises(rx.errors.UsageError, match="Build the pipeline as it was"):
        again.set_state(states[2])


# fit, evaluate and predict.


def rows(count=27):
    sample = np.random.default_rng(1)
    x = sample.normal(size=(count, 4)).astype("float32")
    return x, sample.normal(size=(count, 1)).astype("float32")


def trained(strategy, data, **fit_args):
    model = made(strategy, dense_net)
    return model, model.fit(data, verbose=0, **fit_args).history["loss"]


@three_strategies
def test_fit_on_a_data_set_is_fit_on_its_arrays(strategy):
    x, y = rows()
    dataset = Dataset.from_tensor_slices((x, y)).batch(8)
    expected = dense_net()
    losses = expected.fit(x, y, batch_size=8, shuffle=False, epochs=2, verbose=0).history["loss"]
    distributed = strategy.experimental_distribute_dataset(dataset)
    for data in (dataset, distributed):
        model, seen = trained(strategy, data, epochs=2)
        np.testing.assert_allclose(seen, losses, rtol=1e-5)
        assert weight_difference(model.get_weights(), expected.get_weights()) < 1e-5
        assert model.evaluate(data, verbose=0) == pytest.approx(
            expected.evaluate(x, y, batch_size=8, verbose=0), rel=1e-5
        )
        np.testing.assert_allclose(
            model.predict(dataset.map(lambda x, y: x), verbose=0),
            expected.predict(x, verbose=0),
            rtol=1e-4,
            atol=1e-6,
        )


@three_strategies
def test_fit_takes_an_endless_data_set_with_steps(strategy):
    x, y = rows()
    endless = Dataset.from_tensor_slices((x, y)).repeat().batch(8)
    model, losses = trained(strategy, endless, epochs=2, steps_per_epoch=4)
    assert len(losses) == 2
    assert int(model.optimizer.iterations.value) == 8


@three_strategies
def test_fit_shuffles_each_epoch_anew_and_validates(strategy):
    x, y = rows()
    seen = []
    data = Dataset.from_tensor_slices((x, y)).enumerate().shuffle(27, seed=1)
    data = data.map(lambda number, row: seen.append(int(number)) or row).batch(9)
    model = made(strategy, dense_net)
    history = model.fit(
        data, epochs=2, verbose=0, validation_data=Dataset.from_tensor_slices((x, y)).batch(5)
    ).history
    assert len(history["val_loss"]) == 2
    first, second = seen[-54:-27], seen[-27:]
    assert sorted(first) == sorted(second) == list(range(27))
    assert first != second


def test_fit_goes_on_from_an_iterator(mirrored):
    x, y = rows()
    dataset = Dataset.from_tensor_slices((x, y)).batch(9)
    expected, _ = trained(mirrored, Dataset.from_tensor_slices((x[9:], y[9:])).batch(9))
    for data in (dataset, mirrored.experimental_distribute_dataset(dataset)):
        iterator = iter(data)
        next(iterator)
        model, _ = trained(mirrored, iterator)
        assert weight_difference(model.get_weights(), expected.get_weights()) < 1e-6


def test_epochs_after_the_rest_of_an_iterator_are_whole(mirrored):
    x, y = rows()
    dataset = Dataset.from_tensor_slices((x, y)).batch(3)
    for data in (dataset, mirrored.experimental_distribute_dataset(dataset)):
        iterator = iter(data)
        for _ in range(7):
            next(iterator)
        model, _ = trained(mirrored, iterator, epochs=3)
        assert int(model.optimizer.iterations.value) == 2 + 9 + 9


def test_fit_reads_a_model_without_a_strategy_too():
    x, y = rows()
    _, losses = trained(None, Dataset.from_tensor_slices((x, y)).batch(9), epochs=1)
    assert np.isfinite(losses).all()


def test_fit_says_that_single_rows_are_no_batches(mirrored):
    x, y = rows()
    model = made(mirrored, dense_net)
    labels = Dataset.from_tensor_slices((x, y[:, 0]))
    with pytest.raises(rx.errors.UsageError, match="shapes"):
        model.fit(labels, verbose=0)
    model.fit(labels.batch(9), verbose=0)  # and the model is usable


def test_a_loader_that_reuses_its_buffer_trains_on_every_batch(mirrored):
    x, y = rows()
    buffer = (np.empty((9, 4), "float32"), np.empty((9, 1), "float32"))

    def reused():
        for start in range(0, 27, 9):
            buffer[0][:] = x[start : start + 9]
            buffer[1][:] = y[start : start + 9]
            yield buffer

    expected, _ = trained(mirrored, Dataset.from_tensor_slices((x, y)).batch(9))
    for data in (Dataset.from_generator(reused), mirrored.experimental_distribute_dataset(reused)):
        model, _ = trained(mirrored, data)
        assert weight_difference(model.get_weights(), expected.get_weights()) < 1e-6
