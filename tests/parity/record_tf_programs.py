"""Records what TensorFlow gives for the programs of `program_cases.py`, for `test_programs.py`.

    tf/bin/python tests/parity/record_tf_programs.py

(the environment is `record_tf.py`'s) writes `recorded_programs.json` next to this file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf
from program_cases import CASES

RECORDED = Path(__file__).with_name("recorded_programs.json")


def plain(value):
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return np.asarray(value).tolist()


def main() -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    results = {name: plain(fn(tf)) for name, fn in CASES.items()}
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(of)}" for name, of in results.items())
    RECORDED.write_text(f'{{"version": "{tf.__version__}",\n{lines}\n}}\n')


if __name__ == "__main__":
    main()
