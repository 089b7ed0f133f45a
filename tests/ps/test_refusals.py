"""What closures cannot be, and whom servers do not serve."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._program.capture import current_recorder
from replicax._ps.hosts.contact import Dialer
from replicax._ps.queue.lanes import ServerGone
from replicax._ps.recording import record
from replicax._ps.store.servers import Client


def test_a_closure_that_calls_back_into_python_stays_behind(started):
    coordinator = rx.coordinator.ClusterCoordinator(started(servers=1))

    @rx.function
    def shown(x):
        jax.debug.print("{}", x)
        return x

    with pytest.raises(UsageError, match="Cannot export"):
        coordinator.schedule(shown, args=(np.float32(1.0),))


def test_a_snapshot_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(rx.errors.ReplicaxError, match="file/folder.*`snapshot_dir`"):
        strategy = rx.ParameterServerStrategy(
            engine="threads", num_workers=1, num_ps=1, snapshot_dir=tmp_path / "file/folder"
        )
        with strategy.scope():
            keras.Variable(1.0)


def test_text_stays_out_of_closures(started):
    coordinator = rx.coordinator.ClusterCoordinator(started(servers=1))
    words = np.array(["a", "bc", "d", "e"])

    @rx.function
    def of_argument(words):
        return words.size

    @rx.function
    def of_data(iterator):
        return next(iterator).size

    with pytest.raises(UsageError, match="hash_ids"):
        coordinator.schedule(of_argument, args=(words,))
    data = coordinator.create_per_worker_dataset(
        lambda: rx.data.Dataset.from_tensor_slices(words).batch(2)
    )
    with pytest.raises(UsageError, match="hash_ids"):
        coordinator.schedule(of_data, args=(iter(data),))


def test_a_closure_that_changes_each_time_it_is_traced():
    variable = keras.Variable(np.eye(3, dtype="float32"))
    counts = iter(range(1000))

    def restless(leaves):
        recorder = current_recorder()
        return recorder.lookup(variable, np.zeros(next(counts) + 1, "int32")).sum()

    with pytest.raises(RuntimeError, match="other variables or data at each trace"):
        record(restless, [], example=lambda source: source)


def test_a_server_of_another_run_is_gone_for_a_worker(started):
    engine = started(servers=1).coordination.engine
    stranger = Dialer(engine.cluster.secret, "another run", {"role": "worker"})
    client = Client(stranger, engine.client.addresses)
    with pytest.raises(ServerGone, match="It has begun anew"):
        client.call(0, "stats")
    client.close()
