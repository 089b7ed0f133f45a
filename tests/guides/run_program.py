"""Runs one program of this folder on small made-up data, and prints its `figures` as JSON.

    python tests/guides/run_program.py keras_fit.py
    tf/bin/python tests/guides/run_program.py keras_fit.py --tensorflow

With `--tensorflow` the first import becomes `import tensorflow as tf`; else TensorFlow is blocked.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import runpy
import sys

HERE = pathlib.Path(__file__).resolve().parent
IMPORT = "import replicax.tf as tf\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a program of tests/guides.")
    parser.add_argument("program")
    parser.add_argument("--tensorflow", action="store_true")
    parser.add_argument("--devices", type=int, default=2, help="virtual devices, in TensorFlow")
    arguments = parser.parse_args()

    sys.path.insert(0, str(HERE / "stand_ins"))
    path = HERE / arguments.program
    if arguments.tensorflow:
        tf = start_tensorflow(arguments.devices)
        path = translated(path)
    else:
        sys.modules["tensorflow"] = None  # importing it is an error
        import replicax.tf as tf
    import made_up_data

    made_up_data.install(tf)
    sys.path.insert(0, str(path.parent))
    found = runpy.run_path(str(path), run_name="__main__")
    print("FIGURES", json.dumps(found["figures"], default=float))


def start_tensorflow(devices: int):
    import tensorflow as tf

    if devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration() for _ in range(devices)]
        tf.config.set_logical_device_configuration(cpu, parts)
    return tf


def translated(path: pathlib.Path) -> pathlib.Path:
    """A folder with the programs as TensorFlow's."""
    folder = pathlib.Path.cwd() / "tensorflow_programs"
    folder.mkdir(exist_ok=True)
    for source in HERE.glob("*.py"):
        text = source.read_text().replace(IMPORT, "import tensorflow as tf\n")
        (folder / source.name).write_text(text)
    return folder / path.name


if __name__ == "__main__":
    main()
