"""Python runs this when it starts: on machine b the wall clock is ten minutes ahead.

The kernel has one wall clock for all. So only what Python asks for is ahead, by `time.time`: files
and libraries of C++ have the right time.
"""

import os
import sys
import time

sys.modules.update(dict.fromkeys(("matplotlib", "sklearn")))  # as in tests/lean

if os.uname().nodename == "b":
    _seconds, _nanoseconds = time.time, time.time_ns
    time.time = lambda: _seconds() + 600.0
    time.time_ns = lambda: _nanoseconds() + 600 * 10**9
