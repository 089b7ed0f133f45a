"""TensorFlow's checkpoint files by name, as `record_tf_checkpoints.py` had them written."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import CheckpointError, UsageError

FOLDER = Path(__file__).with_name("tf_checkpoints")
PLAIN = FOLDER / "plain" / "ckpt-1"
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
KINDS = {
    "bfloat16", "bool", "complex64", "float16", "float32", "float64", "int32", "int64", "int8",
    "uint8",
}  # fmt: skip


def test_tensors_of_all_types():
    reader = tf.train.load_checkpoint(str(PLAIN.parent))  # the latest, by the file `checkpoint`
    for kind in KINDS:
        found = reader.get_tensor(f"module/of/{kind}{VALUE}")
        assert found.dtype.name == kind
        assert found.tolist() == np.array([[0, 1], [2, 3]]).astype(found.dtype).tolist()
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    assert {n.split("/")[2] for n in shapes if n.startswith("module/of/")} == KINDS
    assert shapes[f"module/none{VALUE}"] == [0, 3]
    assert reader.get_tensor(f"module/none{VALUE}").shape == (0, 3)
    assert dtypes[f"module/of/bfloat16{VALUE}"].name == "bfloat16"
    assert reader.has_tensor(f"count{VALUE}") and not reader.has_tensor("count")


def test_texts():
    reader = tf.train.load_checkpoint(PLAIN)
    words = reader.get_tensor(f"module/words/0{VALUE}")
    assert words.tolist() == [b"a", b"", "é".encode() * 100]
    assert reader.get_tensor(f"module/words/1{VALUE}").item() == b"alone"
    assert reader.get_variable_to_dtype_map()[f"module/words/0{VALUE}"].kind == "O"


def test_names_of_the_functions():
    assert (f"count{VALUE}", []) in tf.train.list_variables(PLAIN)
    assert tf.train.load_variable(PLAIN, f"count{VALUE}") == 7
    for reader in (tf.train.NewCheckpointReader, tf.compat.v1.train.NewCheckpointReader):
        assert reader(str(PLAIN)).get_tensor(f"save_counter{VALUE}") == 1
    with pytest.raises(UsageError, match="'nothing'"):
        tf.train.load_variable(PLAIN, "nothing")


def test_the_latest_of_a_folder(tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(PLAIN.parent, folder)
    assert tf.train.latest_checkpoint(folder) == f"{folder}/ckpt-1"
    for end in (".index", ".data-00000-of-00001"):
        shutil.copy(f"{PLAIN}{end}", f"{folder}/ckpt-3{end}")
    line = 'model_checkpoint_path: "{0}-3"\n' + "".join(
        f'all_model_checkpoint_paths: "{{0}}-{n}"\n' for n in (1, 2, 3)
    )
    for prefix in ("ckpt", f"{folder}/ckpt"):  # relative to the folder, and whole
        (folder / "checkpoint").write_text(line.format(prefix))
        assert tf.train.latest_checkpoint(folder) == f"{folder}/ckpt-3"
    state = tf.train.get_checkpoint_state(folder)
    assert state is not None
    assert state.all_model_checkpoint_paths == [f"{folder}/ckpt-1", f"{folder}/ckpt-3"]  # 2 is gone
    step = tf.Variable(0)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(step=step), folder, max_to_keep=2)
    assert manager.latest_checkpoint == f"{folder}/ckpt-3"
    assert manager.save() == f"{folder}/ckpt-4"  # numbers go on from TensorFlow's
    assert manager.latest_checkpoint == f"{folder}/ckpt-4"


def test_files_in_pieces():
    reader = tf.train.load_checkpoint(FOLDER / "pieces" / "sharded")
    assert reader.get_tensor("a").tolist() == [1.0, 2.0]
    assert reader.get_tensor("b").tolist() == [[3], [4]]
    sliced = tf.train.load_checkpoint(FOLDER / "pieces" / "sliced")
    assert sliced.get_variable_to_shape_map() == {"c": [4]}
    with pytest.raises(UsageError, match="'c' in pieces"):
        sliced.get_tensor("c")


@pytest.mark.parametrize("end", [".index", ".data-00000-of-00001"])
def test_damage_is_noticed_whatever_byte_it_hits(tmp_path, end):
    wanted = values(PLAIN)
    shutil.copytree(PLAIN.parent, tmp_path, dirs_exist_ok=True)
    path = tmp_path / f"ckpt-1{end}"
    whole = path.read_bytes()
    noticed = 0
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x11]) + whole[place + 1 :])
        try:
            assert values(tmp_path / "ckpt-1") == wanted  # a byte between the blocks
        except CheckpointError:
            noticed += 1
    assert noticed > 0.9 * len(range(0, len(whole), 7))
    for length in (0, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match="damaged"):
            values(tmp_path / "ckpt-1")
    path.unlink()
    with pytest.raises(CheckpointError):
        values(tmp_path / "ckpt-1")


def test_a_compressed_index_is_refused(tmp_path):
    import google_crc32c

    from replicax._core.wire import masked

    block = b"\x00\x00\x00\x00\x01\x00\x00\x00"
    trailer = b"\x01" + masked(google_crc32c.value(block + b"\x01")).to_bytes(4, "little")
    footer = b"\x00\x08\x00\x08".ljust(40, b"\x00") + 0xDB4775248B80FB57.to_bytes(8, "little")
    (tmp_path / "ckpt.index").write_bytes(block + trailer + footer)
    with pytest.raises(UsageError, match="compressed"):
        tf.train.load_checkpoint(tmp_path / "ckpt")


def values(prefix: Path) -> dict[str, object]:
    reader = tf.train.load_checkpoint(prefix)
    return {n: reader.get_tensor(n).tolist() for n in reader.get_variable_to_shape_map()}
