"""A process that has imported JAX and Keras, and forks for each program it is asked to run.

For tests of many small programs: importing takes longer than most of them run. A program gets its
own process, with its own devices: nothing that is imported here touches a JAX backend.

Run as a program, it reads requests from its standard input, one line of JSON each: `argv`, as
Python gets it ("-c", a path), and `output`, a file for what is printed. It answers with two lines:
the number of the process, then its exit code.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Zygote:
    """The side of the tests."""

    def __init__(self):
        environment = {
            **os.environ,
            "JAX_NUM_CPU_DEVICES": "8",
            "NPROC": "8",
            "KERAS_BACKEND": "jax",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *argv, output, timeout):
        """Run Python with these arguments; return its exit code, and write to `output`."""
        self._ask({"argv": argv, "output": str(output)})
        number = int(self._process.stdout.readline())
        alarm = threading.Timer(timeout, os.kill, [number, 9])
        alarm.start()
        try:
            return int(self._process.stdout.readline())
        finally:
            alarm.cancel()
            alarm.join()

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()

    def _ask(self, request):
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()


def next_program():
    """Serve requests; return in the forked process, with the arguments of its program."""
    for line in sys.stdin:
        request = json.loads(line)
        number = os.fork()
        if number == 0:
            take_over(request["output"])
            return request["argv"]
        print(number, flush=True)
        _, status = os.waitpid(number, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def take_over(output):
    """Let this process print into a file and read nothing."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(file)
    os.close(nothing)


if __name__ == "__main__":
    import keras  # noqa: F401

    import replicax  # noqa: F401

    program = next_program()
    # What follows runs in the forked process, to its usual end: exit handlers, traceback, code.
    if program:
        sys.argv = program[:1] if program[0] != "-c" else ["-c"]
        sys.argv += program[2:] if program[0] == "-c" else program[1:]
        if program[0] == "-c":
            sys.path.insert(0, "")
            exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0] = str(Path(program[0]).parent)
            runpy.run_path(program[0], run_name="__main__")
