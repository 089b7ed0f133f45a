"""Files that somebody else has put where Replicax reads: none of them may run code."""

from __future__ import annotations

import base64
import functools
import json
import pickle
import time
import zlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

import replicax as rx
from faults.fault import Fault, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SECONDS = 100  # for a program of seconds, on a busy machine


class Planted:
    """Unpickled, it writes a file.

    Args:
        marker: Where.
    """

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> Any:
        return open, (str(self._marker), "w")


def _outcome(said: str, marker: Path, *, holds: bool, named: str = "") -> Outcome:
    ran = marker.exists()
    what = f"{said}; " + ("CODE RAN" if ran else "no code ran")
    return Outcome(what, holds and not ran, named=named)


# Snapshots of parameter servers.


def plant_in_manifest(manifest: Path, planted: Planted) -> None:
    """Make one of version 1: its optimizers and constraints were pickles."""
    body = json.loads(manifest.read_bytes())[2]
    text = base64.b64encode(pickle.dumps(planted)).decode()
    body["state"]["optimizers"] = [[0, text, 0, 0.1]]
    for cell in body["cells"]:
        cell["constraint"] = text
    checksum = zlib.crc32(json.dumps(body, sort_keys=True).encode())
    manifest.write_text(json.dumps([1, checksum, body]))


def plant_in_journal(manifest: Path, planted: Planted) -> None:
    """Add a message that brings code, as the coordinator sends it."""
    from replicax._ps.server.snapshot_files import Journal  # as Replicax itself would write it

    run = json.loads(manifest.read_bytes())[2]["run"]
    journal = Journal(manifest.parents[1] / "journal-99999999-ff")
    journal.append("begin", {"run": run, "is_first": False})
    journal.append("code", {}, [pickle.dumps(planted)])
    journal.close()


def _restore(plant: Callable[[Path, Planted], None], folder: Path) -> Outcome:
    """Kill a server behind whose snapshot something was planted."""
    marker = folder / "it ran"
    strategy = rx.ParameterServerStrategy(
        num_workers=1, num_ps=1, snapshot_dir=folder / "snapshots", snapshot_seconds=0.2
    )
    try:
        with strategy.scope():
            variable = keras.Variable(np.zeros(3, "float32"), name="kernel")
        variable.assign_add(np.ones(3, "float32"))
        strategy.coordination.engine.ready()
        while not (manifests := list(folder.glob("snapshots/server-0/snapshot-*/state.json"))):
            time.sleep(0.05)
        plant(max(manifests), Planted(marker))
        strategy.coordination.engine.cluster.kill("server", 0)
        try:
            variable.assign_add(np.ones(3, "float32"))
        except rx.errors.ReplicaxError as error:
            files = {"state.json": "the manifest", "journal-99999999": "the journal"}
            named = next((said for name, said in files.items() if name in str(error)), "")
            return _outcome(
                "refused when the server begins anew", marker, holds=bool(named), named=named
            )
        return _outcome("restored from it", marker, holds=False)
    finally:
        strategy.close()


# Arrays, models and data sets.


def _refused(call: Callable[[], object], marker: Path, named: str) -> Outcome:
    try:
        call()
    except Exception as error:  # whatever it is, it is what the table says
        named = named if named in str(error) else ""
        said = f"refused: {type(error).__name__}"
        return _outcome(said, marker, holds=bool(named), named=named)
    return _outcome("taken", marker, holds=False)


def _objects(planted: Planted) -> np.ndarray:
    return np.array([planted, planted], object)


def _plant_data(folder: Path) -> Outcome:
    saved, marker = folder / "data", folder / "it ran"
    rx.data.Dataset.from_tensor_slices(np.arange(1000)).save(str(saved))
    path = saved / "0.values.npy"
    size = path.stat().st_size
    np.save(path, _objects(Planted(marker)), allow_pickle=True)
    with open(path, "ab") as file:  # whose sizes are known
        file.truncate(size)
    return _refused(lambda: list(rx.data.Dataset.load(str(saved))), marker, path.name)


def _plant_weights(folder: Path) -> Outcome:
    saved, marker = folder / "model", folder / "it ran"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    rx.tf.saved_model.save(model, str(saved))
    (weights,) = saved.rglob("*.npz")
    with open(weights, "wb") as file:
        np.savez(file, **{str(n): _objects(Planted(marker)) for n in range(2)})
    return _refused(lambda: rx.tf.saved_model.load(str(saved)), marker, "model")


def _plant_lambda(folder: Path) -> Outcome:
    path, marker = folder / "model.keras", folder / "it ran"
    run = eval(f"lambda x: (open({str(marker)!r}, 'w'), x)[1]")
    keras.Sequential([keras.Input((2,)), keras.layers.Lambda(run, output_shape=(2,))]).save(path)
    marker.unlink(missing_ok=True)  # of making it
    return _refused(lambda: rx.tf.keras.models.load_model(path), marker, "Lambda")


FAULTS = (
    Fault(
        "strangers",
        "Pickles are planted in the manifest of a parameter server's snapshots",
        functools.partial(_restore, plant_in_manifest),
    ),
    Fault(
        "strangers",
        "A pickled optimizer is planted as a journal of a parameter server's snapshots",
        functools.partial(_restore, plant_in_journal),
    ),
    Fault("strangers", "Pickled objects are planted in a saved data set", _plant_data),
    Fault(
        "strangers", "Pickled objects are planted in the weights of a saved model", _plant_weights
    ),
    Fault("strangers", "A model file brings a Lambda layer with code of its own", _plant_lambda),
)
