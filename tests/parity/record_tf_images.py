"""Records what `tf.image` computes, for `test_images.py`.

    tf/bin/python tests/parity/record_tf_images.py

(the environment is `record_tf.py`'s) writes `recorded_images.json` next to this file.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import image_cases
import numpy as np
import tensorflow as tf

RECORDED = Path(__file__).with_name("recorded_images.json")


def record() -> None:
    found = {name: np.asarray(case(tf)) for name, case in image_cases.CASES.items()}
    text = {
        name: [str(array.dtype), array.astype("float64").round(5).tolist()]
        for name, array in found.items()
    }
    RECORDED.write_text(json.dumps(text))


if __name__ == "__main__":
    record()
