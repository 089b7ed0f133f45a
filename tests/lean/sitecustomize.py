"""Python runs this when it starts, where this folder is in PYTHONPATH; see `helpers.LEAN`."""

from __future__ import annotations

import sys


class Absent:
    """What Keras looks for, and does without."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("matplotlib", "sklearn"):
            raise ModuleNotFoundError(f"No module named {name!r} in this process of the tests")


sys.meta_path.insert(0, Absent)
