"""Records checkpoints that TensorFlow writes, for `test_checkpoints.py`.

    tf/bin/python tests/parity/record_tf_checkpoints.py

(the environment is `record_tf.py`'s, with `tf_keras`) writes the folder `tf_checkpoints` next to
this file, and what the models compute to `recorded_checkpoints.json`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import checkpoint_models as models
import numpy as np
import tensorflow as tf

HERE = Path(__file__).parent
FOLDER = HERE / "tf_checkpoints"
RECORDED = HERE / "recorded_checkpoints.json"


def record_keras(kind: str) -> dict[str, Any]:
    """The models of one Keras: what they compute, also after one more step of training."""
    keras, found = tf.keras, {}
    optimizers = {"adam": keras.optimizers.Adam(0.05)}
    if kind == "keras2":
        optimizers["legacy"] = keras.optimizers.legacy.Adam(0.05)
        optimizers["momentum"] = keras.optimizers.SGD(0.05, momentum=0.9)
    for name, optimizer in optimizers.items():
        model = models.functional(keras)
        model.compile(optimizer, "mse")
        model.set_weights(models.numbered(model.get_weights()))
        models.train(model, 2)
        checkpoint = tf.train.Checkpoint(
            model=model, optimizer=optimizer, step=tf.Variable(2, dtype=tf.int64)
        )
        checkpoint.save(FOLDER / f"{kind}_{name}" / "ckpt")
        found[f"{kind}_{name}"] = {"outputs": listed(model(models.INPUTS))}
        models.train(model, 1)
        found[f"{kind}_{name}"]["after"] = listed(model(models.INPUTS))
    reader = models.subclassed(keras)
    reader(models.TOKENS)
    reader.set_weights(models.numbered(reader.get_weights()))
    norm = keras.layers.Normalization()
    norm.adapt(models.INPUTS * 2 + 1)
    plain = models.sequential(keras)
    plain.set_weights(models.numbered(plain.get_weights()))
    for name, model, inputs in (
        ("subclassed", reader, models.TOKENS),
        ("sequential", plain, models.INPUTS),
        ("normalization", norm, models.INPUTS),
    ):
        if kind == "keras2" and model is not norm:
            model.save_weights(FOLDER / f"{kind}_{name}" / "weights")
        else:
            tf.train.Checkpoint(model).write(FOLDER / f"{kind}_{name}" / "weights")
        found[f"{kind}_{name}"] = {"outputs": listed(model(inputs))}
    return found


def record_plain() -> None:
    """Variables of all types in a module, and files in pieces."""
    module = tf.Module()
    kinds = ("bfloat16", "bool", "complex64", "float16", "float32", "float64", "int32", "int64",
             "int8", "uint8")  # fmt: skip
    module.of = {name: tf.Variable(tf.cast([[0, 1], [2, 3]], name), name=name) for name in kinds}
    module.words = [tf.Variable(["a", "", "é" * 100]), tf.Variable("alone")]
    module.big = tf.Variable(2**40, dtype=tf.int64)
    module.none = tf.Variable(tf.zeros([0, 3]))
    tf.train.Checkpoint(module=module, count=tf.Variable(7)).save(FOLDER / "plain" / "ckpt")
    for index, (name, value) in enumerate({"a": [1.0, 2.0], "b": [[3], [4]]}.items()):
        save(f"shard{index}", [name], [""], [tf.constant(value)])
    parts = [str(FOLDER / "pieces" / f"shard{index}") for index in range(2)]
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=parts,
        destination_prefix=str(FOLDER / "pieces" / "sharded"),
        delete_old_dirs=False,
    )
    save("sliced", ["c", "c"], ["4 0,2", "4 2,2"], [tf.constant([1, 2]), tf.constant([3, 4])])


def save(name: str, names: list[str], slices: list[str], tensors: list[Any]) -> None:
    """Write tensors by the names that they are given."""
    tf.raw_ops.SaveV2(
        prefix=str(FOLDER / "pieces" / name),
        tensor_names=names,
        shape_and_slices=slices,
        tensors=tensors,
    )


def listed(array: Any) -> list[Any]:
    return np.asarray(array).astype("float64").round(6).tolist()


def main() -> None:
    if sys.argv[1:]:
        sys.stdout.write(json.dumps(record_keras(sys.argv[1])))
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    record_plain()
    found: dict[str, Any] = {}
    for kind, legacy in (("keras2", "1"), ("keras3", "0")):
        command = [sys.executable, __file__, kind]
        environ = {**os.environ, "TF_USE_LEGACY_KERAS": legacy}
        said = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
        found |= json.loads(said.stdout.splitlines()[-1])
    RECORDED.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
