"""A process of one side of a benchmark; `benchmarks/training.py` starts it."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if sys.argv[1] == "--member":
        from harness.processes import tensorflow_member

        tensorflow_member()
    elif sys.argv[1] == "--peaks":
        from harness.peaks import tell

        tell(int(sys.argv[2]))
    else:
        from harness.serve import serve

        serve(sys.argv[1])
