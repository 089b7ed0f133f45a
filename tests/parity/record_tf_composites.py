"""Records what TensorFlow gives of sparse and ragged tensors, for `test_composites.py`.

    tf/bin/python tests/parity/record_tf_composites.py

(the environment is `record_tf.py`'s) writes `recorded_composites.json` next to this file; None for
a case that raises an error.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import composite_cases
import tensorflow as tf

CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

RECORDED = Path(__file__).with_name("recorded_composites.json")


def record() -> None:
    found = {}
    for name, case in composite_cases.CASES.items():
        try:
            found[name] = composite_cases.described(tf, case(tf))
        except (TypeError, ValueError, IndexError, tf.errors.OpError):
            found[name] = None
    RECORDED.write_text(json.dumps(found))


if __name__ == "__main__":
    record()
