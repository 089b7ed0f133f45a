"""A program that saves checkpoints without an end, and is killed at another moment each time."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING

import numpy as np

from replicax.train import _files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PROGRAM = textwrap.dedent("""
    import importlib.util, itertools, sys
    import numpy as np

    # The file alone: without JAX and Keras the program starts ten times as fast.
    spec = importlib.util.spec_from_file_location("_files", sys.argv[3])
    _files = sys.modules["_files"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(_files)
    place, first = sys.argv[1], int(sys.argv[2])
    for number in itertools.count(first):
        pieces = [_files.whole("value", np.full(200_000, number))]
        # Of two kinds: under a new name, and in the place of the one before.
        _files.write(f"{place}/ckpt-{number}", {"number": number}, pieces)
        _files.write(f"{place}/same", {"number": number}, pieces)
        _files.folder.remove(f"{place}/ckpt-{number - 1}")
        print(number, flush=True)
""")


def kill_while_saving(place: Path, times: int) -> Iterator[tuple[int, int]]:
    """Start and kill the program; give the last number that it has finished, and is there."""
    last, moments = 0, np.random.default_rng(0)
    for _ in range(times):
        command = [sys.executable, "-c", _PROGRAM, str(place), str(last + 1), _files.__file__]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said = [process.stdout.readline() for _ in range(3)]
            time.sleep(moments.uniform(0, 0.01))
            process.send_signal(signal.SIGKILL)
            said += process.stdout.readlines()
        last = max(int(path.name[5:]) for path in place.glob("ckpt-*"))
        yield int(said[-1]), last


def is_whole_and_written_again(path: Path, numbers: range) -> bool:
    """Whether a checkpoint is that of one of these numbers, and a later write replaces it."""
    content = _files.opened(str(path))
    number, value = content.body["number"], content.arrays["value"]
    _files.write(str(path), content.body, [_files.whole("value", value)])
    return number in numbers and set(value) == {number}
