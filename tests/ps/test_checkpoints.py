"""Checkpoints of variables on servers: whole, and for any other number of servers, or for none."""

import contextlib
from pathlib import Path

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._ps.server import server as server_module
from replicax.train import _files

Fixed = rx.experimental.partitioners.FixedShardsPartitioner
X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1] * 2 - 1
PLAIN, ONE, MANY = "plain", "one server", "three servers, cut in four"


@pytest.fixture
def made(started):
    """Makes a compiled model: in this process, or on servers."""

    def made(where):
        if where == PLAIN:
            return made_in(contextlib.nullcontext())
        partitioner, servers = (Fixed(4), 3) if where == MANY else (None, 1)
        return made_in(started(partitioner, servers=servers, max_staleness=0).scope())

    return made


def made_in(scope):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model, epochs=1, **more):
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **more).history


def state(model):
    return [np.array(v.value) for v in [*model.variables, *model.optimizer.variables]]


def table_on(started, servers):
    """A table that is worth a file for each shard, with an optimizer's state of as many rows."""
    keras.backend.clear_session()
    with started(Fixed(servers), servers=servers).scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(1 << 16, 4)])
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.fit(X[:, :2] > 0, np.ones((24, 2, 4), "float32"), batch_size=8, verbose=0)
    return model


@pytest.mark.parametrize("case", ["seen", "unseen", "refused", "copied first"])
def test_servers_write_their_shards_where_they_see_the_folder(case, started, tmp_path, monkeypatch):
    model = table_on(started, 2)
    if case == "unseen":
        monkeypatch.setattr(server_module, "Path", lambda path: Path("/no/such/folder/there"))
    if case == "refused":

        @contextlib.contextmanager
        def begun(path):
            with open(path, "xb") as file:
                file.write(b"a part")
            raise OSError("No space left on device")
            yield

        monkeypatch.setattr(server_module.folder, "created", begun)
        monkeypatch.setattr(_files.OnDisk, "create", _create)
    checkpoint = rx.train.Checkpoint(model=model)
    path = checkpoint.save(tmp_path / "ckpt", asynchronous=case == "copied first")
    checkpoint.wait()
    sizes = {file.name: file.stat().st_size for file in Path(path).glob("arrays*.bin")}
    shards = [name for name, size in sizes.items() if size == 4 * 4 << 15]
    assert len(shards) == (4 if case == "seen" else 0)  # of the table and its momentum
    assert len(sizes) == 1 + len(shards)
    saved = state(model)
    for other in (table_on(started, 3), made_table()):
        rx.train.Checkpoint(model=other).restore(path).assert_consumed()
        for mine, theirs in zip(state(other), saved, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def made_table():
    keras.backend.clear_session()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Embedding(1 << 16, 4)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    return model


@contextlib.contextmanager
def _create(files, name):
    with open(files.place / name, "xb") as file:
        yield file


def test_a_checkpoint_goes_to_another_number_of_servers_and_back(made, tmp_path):
    model = made(MANY)
    fit(model)
    path = rx.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    saved = state(model)
    fit(model)
    other = made(ONE)
    rx.train.Checkpoint(model=other).restore(path)
    for mine, theirs in zip(state(other), saved, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    fit(other)
    rx.train.Checkpoint(model=model).restore(rx.train.Checkpoint(model=other).save(path))
    for mine, theirs in zip(state(other), state(model), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_table_in_shards_is_never_whole_on_the_coordinator(started, tmp_path, monkeypatch):
    rows = np.arange(40 * 3, dtype="float32").reshape(40, 3)
    with started(Fixed(4), servers=2).scope():
        table, number = keras.Variable(rows), keras.Variable(2.0)
    checkpoint = rx.train.Checkpoint(table=table, number=number)

    def whole(self):
        raise AssertionError("the whole of a variable is read")

    with monkeypatch.context() as patch:
        patch.setattr(type(table), "_value", property(whole, whole))
        path = checkpoint.write(tmp_path / "here")
        for shard in table.variables:
            shard.assign(np.zeros(shard.shape))
        checkpoint.read(path)
    np.testing.assert_array_equal(table.numpy(), rows)
    np.testing.assert_array_equal(np.asarray(table[30:]), rows[30:])


def test_a_checkpoint_after_join_has_the_updates_of_all_closures(started, tmp_path):
    strategy = started(workers=2)
    with strategy.scope():
        counters = [keras.Variable(0.0, name=f"counter_{k}") for k in range(3)]
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    checkpoint = rx.train.Checkpoint(counters=counters)

    @rx.function
    def count():
        for counter in counters:
            counter.assign_add(1.0)

    for step in range(1, 4):
        for _ in range(10):
            coordinator.schedule(count)
        coordinator.join()
        path = checkpoint.save(tmp_path / "ckpt")
        assert [float(counter) for counter in counters] == [10.0 * step] * 3
    for _ in range(5):
        coordinator.schedule(count)
    coordinator.join()
    checkpoint.restore(path)
    coordinator.schedule(count)
    coordinator.join()
    assert [float(counter) for counter in counters] == [31.0] * 3


class Ends(keras.callbacks.Callback):
    """Ends the program in the middle of an epoch, as kill does: nothing more is saved."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations >= 5:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def reference():
    """What a run that nobody kills gives, in this process."""
    model = made_in(contextlib.nullcontext())
    return fit(model, 3), state(model)


@pytest.mark.parametrize(("first", "second"), [(MANY, PLAIN), (PLAIN, MANY)])
def test_fit_goes_on_where_the_program_was_killed(made, tmp_path, reference, first, second):
    def backup():
        return rx.callbacks.BackupAndRestore(tmp_path, every_batches=2)

    with pytest.raises(KeyboardInterrupt):
        fit(made(first), 3, callbacks=[backup(), Ends()])
    model = made(second)
    history = fit(model, 3, callbacks=[backup()])
    assert int(model.optimizer.iterations) == 9
    np.testing.assert_allclose(history["loss"], reference[0]["loss"], rtol=1e-4)
    for mine, theirs in zip(state(model), reference[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
