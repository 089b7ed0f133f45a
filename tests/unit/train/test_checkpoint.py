import os
from concurrent.futures import Future

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import CheckpointError, UsageError
from replicax.train import _files
from replicax.train._plain import decoded, encoded

from channels import as_workers
from fitting import ROWS, TARGETS, dense_net, made


def trained(strategy=None, **compile_args):
    model = made(strategy, lambda: dense_net(**compile_args))
    model.fit(ROWS, TARGETS, epochs=1, verbose=0)
    return model


def values(model):
    return [np.asarray(v.value) for v in [*model.variables, *model.optimizer.variables]]


def assert_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_model_and_its_optimizer_come_back(tmp_path):
    saved = trained(optimizer="adam")
    path = rx.train.Checkpoint(model=saved).save(tmp_path / "ckpt")
    assert path == f"{tmp_path}/ckpt-1"
    fresh = dense_net(optimizer="adam")  # Keras counts its layers on: other paths
    assert not fresh.optimizer.built
    rx.train.Checkpoint(model=fresh).restore(path).assert_consumed()
    assert_equal(values(fresh), values(saved))


def test_training_goes_on_as_if_nothing_had_happened(tmp_path, mirrored):
    def net():
        model = dense_net(optimizer="adam")
        dropped = keras.Sequential(
            [keras.Input((4,)), *model.layers, keras.layers.Dropout(0.5, seed=3)]
        )
        dropped.compile("adam", "mse")
        return dropped

    whole = made(mirrored, net)
    fit = {"epochs": 1, "shuffle": False, "verbose": 0}
    whole.fit(ROWS, TARGETS, **fit)
    path = rx.train.Checkpoint(model=whole).write(tmp_path / "here")
    whole.fit(ROWS, TARGETS, **fit)
    resumed = made(mirrored, net)
    rx.train.Checkpoint(model=resumed).read(path)
    resumed.fit(ROWS, TARGETS, **fit)
    assert_equal(values(resumed), values(whole))


def test_restored_by_another_strategy(tmp_path, mirrored):
    saved = trained(mirrored, optimizer="adam")
    path = rx.train.Checkpoint(model=saved).write(tmp_path / "here")
    other = made(rx.experimental.CentralStorageStrategy(["CPU:0", "CPU:1"]), dense_net)
    other.compile("adam", "mse")
    rx.train.Checkpoint(model=other).read(path)
    assert_equal(values(other), values(saved))
    other.fit(ROWS, TARGETS, verbose=0)


def test_metrics_seeds_variables_values_and_nests_of_them(tmp_path):
    def objects(start):
        mean = keras.metrics.Mean()
        mean.update_state([start, start + 1.0])
        return {
            "metrics": {"mean": mean},
            "seeds": [keras.random.SeedGenerator(int(start))],
            "variable": keras.Variable(start, dtype="bfloat16"),
            "layer": keras.layers.Normalization(mean=start, variance=1.0),
            "number": rx.train.Value({"step": start, "pair": (1, b"x", np.float32(2))}),
        }

    saved, fresh = objects(3.0), objects(5.0)
    rx.train.Checkpoint(**fresh).read(rx.train.Checkpoint(**saved).write(tmp_path / "here"))
    assert float(fresh["metrics"]["mean"].result()) == 3.5
    assert_equal([fresh["seeds"][0].state.value], [saved["seeds"][0].state.value])
    assert float(fresh["variable"]) == 3.0
    assert fresh["number"].value == {"step": 3.0, "pair": (1, b"x", np.float32(2))}


def test_positions_come_back(tmp_path, mirrored):
    def iterators():
        dataset = rx.data.Dataset.range(20).shuffle(20).batch(4)
        distributed = mirrored.experimental_distribute_dataset(dataset)
        return {"plain": iter(dataset), "split": iter(distributed)}

    def rest(both):
        plain = [batch.tolist() for batch in both["plain"]]
        return plain, [[piece.tolist() for piece in batch.values] for batch in both["split"]]

    before = iterators()
    next(before["plain"])
    next(before["split"])
    path = rx.train.Checkpoint(**before).write(tmp_path / "here")
    again = iterators()
    rx.train.Checkpoint(**again).read(path)
    assert rest(again) == rest(before)


@pytest.mark.parametrize(
    "value",
    [
        [None, True, 2**80, 0.1, "text", (), {1: "a", (2,): b"\0"}, {"!": 3}],
        np.array(["a", "bcd"]),
        np.array([b"a", None], object),
        np.arange(3, dtype="int16"),
        np.float16(0.5),
    ],
)
def test_plain_data_comes_back(value):
    again = decoded(_files.json.loads(_files.json.dumps(encoded(value))))
    assert type(again) is type(value)
    np.testing.assert_equal(again, value)
    assert getattr(again, "dtype", None) == getattr(value, "dtype", None)


def test_the_counter_goes_on(tmp_path):
    checkpoint = rx.train.Checkpoint(step=rx.train.Value(1))
    checkpoint.save(tmp_path / "a")
    path = checkpoint.save(tmp_path / "a")
    fresh = rx.train.Checkpoint(step=rx.train.Value())
    fresh.restore(path)
    assert fresh.save_counter == 2
    assert fresh.save(tmp_path / "a") == f"{tmp_path}/a-3"
    assert fresh.restore(None).expect_partial().unused == ()


def test_more_in_the_file_is_fine_unless_asked(tmp_path):
    path = rx.train.Checkpoint(a=keras.Variable(1.0), b=keras.Variable(2.0)).write(tmp_path / "x")
    status = rx.train.Checkpoint(a=keras.Variable(0.0)).read(path)
    with pytest.raises(UsageError, match="'b'"):
        status.assert_consumed()


def test_less_in_the_file_is_an_error(tmp_path):
    path = rx.train.Checkpoint(a=keras.Variable(1.0)).write(tmp_path / "x")
    a, b = keras.Variable(0.0), keras.Variable(0.0)
    with pytest.raises(UsageError, match="'b'"):
        rx.train.Checkpoint(a=a, b=b).read(path)
    assert float(a) == 0.0  # nothing is changed before all is known to fit


def test_what_is_tracked_may_be_missing(tmp_path):
    path = rx.train.Checkpoint(a=keras.Variable(1.0)).write(tmp_path / "x")
    fresh, count = rx.train.Checkpoint(a=keras.Variable(0.0)), rx.train.Value(0)
    fresh.track("count", count)
    fresh.read(path)
    assert count.value == 0


@pytest.mark.parametrize(("value", "dtype"), [([1.0], "float32"), ([1.0, 2.0], "bfloat16")])
def test_another_shape_or_type_is_refused(tmp_path, value, dtype):
    path = rx.train.Checkpoint(a=keras.Variable([1.0, 2.0], name="v")).write(tmp_path / "x")
    other = keras.Variable(value, dtype=dtype, name="v")
    with pytest.raises(UsageError, match=r"\(2,\) of float32.*'v'.*/x'"):
        rx.train.Checkpoint(a=other).read(path)


def test_another_model_is_refused(tmp_path):
    flat = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    path = rx.train.Checkpoint(model=flat).write(tmp_path / "x")
    deeper = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1), keras.layers.Dense(1)])
    with pytest.raises(UsageError, match="only here"):
        rx.train.Checkpoint(model=deeper).read(path)
    empty = keras.Sequential([keras.Input((2,)), keras.layers.Flatten()])
    with pytest.raises(UsageError, match="no variables yet.* 2"):
        rx.train.Checkpoint(model=empty).read(path)


def test_a_state_that_is_code_is_refused(tmp_path):
    with pytest.raises(UsageError, match="`get_state`"):
        rx.train.Checkpoint(x=rx.train.Value(print)).write(tmp_path / "x")


def test_written_by_a_thread_while_training_goes_on(tmp_path):
    model = trained(optimizer="adam")
    checkpoint = rx.train.Checkpoint(model=model)
    before = [value.copy() for value in values(model)]
    path = checkpoint.write(tmp_path / "x", asynchronous=True)
    model.fit(ROWS, TARGETS, verbose=0)
    checkpoint.read(path)
    assert_equal(values(model), before)


@pytest.mark.parametrize("then", ["write", "wait"])
def test_a_failure_of_the_thread_is_raised_later(tmp_path, then):
    checkpoint = rx.train.Checkpoint(step=rx.train.Value(1))
    (tmp_path / "file").write_text("")
    checkpoint.write(tmp_path / "file" / "x", asynchronous=True)
    with pytest.raises(OSError, match="file"):
        checkpoint.wait() if then == "wait" else checkpoint.write(tmp_path / "y")
    checkpoint.write(tmp_path / "y")  # and then it is over


def test_an_interrupted_wait_may_be_repeated(tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    checkpoint = rx.train.Checkpoint(step=rx.train.Value(1))
    (tmp_path / "file").write_text("")
    checkpoint.write(tmp_path / "file" / "x", asynchronous=True)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Future, "exception", interrupt)
        patch.setattr(Future, "result", interrupt)
        checkpoint.wait()
    with pytest.raises(OSError, match="file"):
        checkpoint.wait()


def test_the_chief_writes_and_all_read(tmp_path):
    def work(index):
        value = rx.train.Value(index)
        checkpoint = rx.train.Checkpoint(value=value, variable=keras.Variable(float(7)))
        checkpoint.write(tmp_path / "x")
        value.value = None
        checkpoint.read(tmp_path / "x")
        return value.value

    assert as_workers(3, work) == [0, 1, 2]
    assert os.listdir(tmp_path) == ["x"]


def test_another_number_of_workers_gets_the_positions_of_all(tmp_path):
    as_workers(2, lambda index: rx.train.Checkpoint(v=rx.train.Value(5)).write(tmp_path / "x"))

    def work(index):
        value = rx.train.Value()
        rx.train.Checkpoint(v=value).read(tmp_path / "x")
        return value.value

    assert as_workers(3, work) == [5, 5, 5]


def test_a_failure_of_the_chief_is_raised_on_all(tmp_path):
    (tmp_path / "file").write_text("")

    def work(index):
        rx.train.Checkpoint(v=rx.train.Value(5)).write(tmp_path / "file" / "x")

    chief, other = as_workers(2, work)
    assert isinstance(chief, OSError)
    assert isinstance(other, CheckpointError)
    assert "Worker 0 failed" in str(other)


def test_a_worker_that_does_not_see_the_folder_gets_the_bytes(tmp_path):
    rx.train.Checkpoint(v=keras.Variable(5.0, name="v")).write(tmp_path / "0" / "x")

    def work(index):
        variable = keras.Variable(0.0, name="v")
        rx.train.Checkpoint(v=variable).read(tmp_path / str(index) / "x")
        return float(variable)

    assert as_workers(2, work) == [5.0, 5.0]


def test_parts_of_a_data_set_are_shared_out_again(tmp_path, monkeypatch):
    from replicax.train import _restored

    class Iterator:
        def get_state(self):
            return {"workers": 2}

        def set_state(self, state):
            self.given = state

    monkeypatch.setattr(_restored, "DistributedIterator", Iterator)
    as_workers(2, lambda index: rx.train.Checkpoint(i=Iterator()).write(tmp_path / "x"))
    alone = Iterator()
    rx.train.Checkpoint(i=alone).read(tmp_path / "x")
    assert alone.given == [{"workers": 2}, {"workers": 2}]


def test_a_checkpoint_is_written_to_where_a_link_leads(tmp_path):
    (tmp_path / "latest").symlink_to(tmp_path / "run" / "ckpt")
    total = keras.Variable(1.0)
    checkpoint = rx.train.Checkpoint(total=total)
    for value in (2.0, 3.0):
        total.assign(value)
        checkpoint.write(tmp_path / "latest")
    total.assign(0.0)
    checkpoint.restore(tmp_path / "run" / "ckpt")
    assert float(total) == 3.0
    assert (tmp_path / "latest").is_symlink()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["ckpt"]


def test_an_attribute_is_saved_whatever_its_name_begins_with(tmp_path):
    checkpoint = rx.train.Checkpoint()
    checkpoint._hidden = total = keras.Variable(1.0)
    path = checkpoint.write(tmp_path / "here")
    total.assign(5.0)
    checkpoint.restore(path)
    assert float(checkpoint._hidden) == 1.0
    with pytest.raises(UsageError, match="_writing"):
        rx.train.Checkpoint(_writing=total)


@pytest.mark.parametrize(
    "of", [lambda a, b: {1: a, "1": b}, lambda a, b: {"a/b": a, "a": {"b": b}}]
)
def test_two_objects_have_two_names(tmp_path, of):
    objects = of(keras.Variable(1.0), keras.Variable(2.0))
    with pytest.raises(UsageError, match="1'|b'"):
        rx.train.Checkpoint(objects=objects).write(tmp_path / "here")


def test_lists_and_dicts_stay_what_they_are_while_values_wait(tmp_path):
    one, two, three = (keras.Variable(float(number)) for number in (1, 2, 3))
    whole = rx.train.Checkpoint(row=[one, two], named={"x": one, "y": three})
    path = whole.write(tmp_path / "here")
    fresh = rx.train.Checkpoint(row=[one], named={"x": one})
    fresh.restore(path)
    assert fresh.row[:1] == [one] and fresh.row.copy() == [one] and fresh.row + [two] == [one, two]
    assert fresh.named.copy() == {"x": one} and fresh.named | {"z": two} == {"x": one, "z": two}
    three.assign(0.0)
    fresh.named |= {"y": three}
    assert float(three) == 3.0


def test_a_layer_computes_with_restored_weights(tmp_path):
    """`Normalization` computes with constants that it makes of them."""
    data = np.arange(6.0, dtype="float32").reshape(3, 2)
    layer, again = keras.layers.Normalization(), keras.layers.Normalization()
    layer.adapt(data)
    again.build((None, 2))
    path = rx.train.Checkpoint(layer=layer).write(tmp_path / "here")
    rx.train.Checkpoint(layer=again).read(path)
    np.testing.assert_array_equal(again(data), layer(data))
