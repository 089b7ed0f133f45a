"""The callback that profiles `fit`, which goes on behind the steps that are measured."""

import builtins
import json
from types import SimpleNamespace

import keras
import pytest

import replicax as rx
from replicax.callbacks import _profiler

from fitting import ROWS, TARGETS, dense_net, made


def test_some_steps_are_measured_and_fit_goes_on(mirrored, tmp_path):
    before = builtins.print
    callback = rx.callbacks.Profiler(tmp_path / "logs", warm_up=3, steps=3, traced=2)
    model = made(mirrored, dense_net)
    model.fit(ROWS, TARGETS, batch_size=10, epochs=4, verbose=0, callbacks=[callback])
    assert model.optimizer.iterations == 12
    assert callback.profile.steps == 3
    assert json.loads((tmp_path / "logs" / "profile.json").read_text())["kind"] == "train step"
    assert "together" in (tmp_path / "logs" / "profile.md").read_text()
    assert list((tmp_path / "logs").glob("plugins/profile/*/*.trace.json.gz"))
    assert builtins.print is before


def test_nothing_is_measured_any_more_when_fit_has_failed(mirrored):
    before = builtins.print
    model = made(mirrored, dense_net)

    def fail(batch, logs):
        raise KeyError("mine")

    callbacks = [rx.callbacks.Profiler(traced=0), keras.callbacks.LambdaCallback()]
    callbacks[1].on_train_batch_end = fail
    with pytest.raises(KeyError, match="mine"):
        model.fit(ROWS, TARGETS, verbose=0, callbacks=callbacks)
    assert builtins.print is before


def test_each_worker_has_a_folder(mirrored, tmp_path, monkeypatch):
    second = SimpleNamespace(process_count=lambda: 2, process_index=lambda: 1)
    monkeypatch.setattr(_profiler, "jax", second)
    callback = rx.callbacks.Profiler(tmp_path, warm_up=1, steps=1, traced=1)
    model = made(mirrored, dense_net)
    model.fit(ROWS, TARGETS, batch_size=10, epochs=2, verbose=0, callbacks=[callback])
    assert [one.name for one in tmp_path.iterdir()] == ["worker-1"]
    folder = tmp_path / "worker-1"
    assert {one.name for one in folder.iterdir()} == {"plugins", "profile.json", "profile.md"}


def test_a_short_fit_keeps_its_history(mirrored, tmp_path):
    callback = rx.callbacks.Profiler(tmp_path / "logs", warm_up=50, traced=0)
    model = made(mirrored, dense_net)
    with pytest.warns(UserWarning, match="No profile was made. Cannot profile"):
        history = model.fit(ROWS, TARGETS, verbose=0, callbacks=[callback])
    assert len(history.history["loss"]) == 1
    assert callback.profile is None
    assert not (tmp_path / "logs").exists()


def test_parameter_servers_are_refused_before_they_train(mirrored, tmp_path, monkeypatch):
    callback = rx.callbacks.Profiler(tmp_path)
    callback.set_model(made(mirrored, dense_net))
    engine = SimpleNamespace(closures="of other processes")
    monkeypatch.setattr(mirrored.extended.distribution, "engine", engine)
    with pytest.raises(rx.errors.UsageError, match="OneDeviceStrategy"):
        callback.on_train_begin()


def test_a_model_of_no_strategy_is_refused(tmp_path):
    model = dense_net()
    model.compile("sgd", "mse")
    with pytest.raises(rx.errors.UsageError, match="outside every scope"):
        model.fit(ROWS, TARGETS, verbose=0, callbacks=[rx.callbacks.Profiler(tmp_path)])


@pytest.mark.parametrize("wrong", [{"steps": 0}, {"warm_up": -1}, {"traced": -1}])
def test_there_must_be_something_to_measure(wrong):
    with pytest.raises(rx.errors.UsageError, match="must be at least"):
        rx.callbacks.Profiler(**wrong)
