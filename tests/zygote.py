"""A process that has imported JAX and Keras, and forks for each program it is asked to run.

For tests of many small programs: importing takes longer than most of them run. A program gets its
own process, with its own devices: nothing that is imported here touches a JAX backend.

Run as a program, it reads requests from its standard input, one line of JSON each: `argv`, as
Python gets it ("-c", a path), `output`, a file for what is printed, `cwd`, and `variables` for its
environment. It answers with two lines: the number of the process, then its exit code and how many
seconds it computed. It runs one program at a time. Its own arguments name more modules to import.
"""

import contextlib
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]


class Zygote:
    """The side of the tests."""

    running = []  # when one has ended, what it computed is that of a child of this process

    def __init__(self, *modules, **variables):
        environment = {
            **os.environ,
            "JAX_NUM_CPU_DEVICES": "8",
            "NPROC": "8",
            "KERAS_BACKEND": "jax",
            **variables,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, *modules],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.number = self._process.pid
        self.computed = 0.0  # seconds, of the programs that have ended
        self.running.append(self)

    def run(self, *argv, output, timeout, variables=None):
        """Run Python with these arguments; return its exit code, and write to `output`."""
        return self.start(*argv, output=output, variables=variables).wait(timeout)

    def start(self, *argv, output, cwd=ROOT, variables=None):
        """Start Python with these arguments, in a folder, with more environment variables."""
        request = {"argv": argv, "output": str(output), "cwd": str(cwd)}
        self._process.stdin.write(json.dumps({**request, "variables": variables or {}}) + "\n")
        self._process.stdin.flush()
        return Program(int(self._process.stdout.readline()), self)

    def answered(self):
        """The exit code of the program that runs, when it has ended."""
        code, seconds = self._process.stdout.readline().split()
        self.computed += float(seconds)
        return int(code)

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        self.running.remove(self)


class Program:
    """A process that was forked."""

    def __init__(self, number, zygote):
        self._number = number
        self._zygote = zygote
        self._code = None

    def wait(self, timeout):
        """The exit code. After `timeout` seconds the process is killed."""
        if self._code is None:
            alarm = threading.Timer(timeout, self._kill)
            alarm.start()
            self._code = self._zygote.answered()
            alarm.cancel()
            alarm.join()
        return self._code

    def _kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._number, signal.SIGKILL)


def next_program():
    """Serve requests; return in the forked process, with the arguments of its program."""
    for line in sys.stdin:
        request = json.loads(line)
        number = os.fork()
        if number == 0:
            take_over(request["output"])
            os.chdir(request["cwd"])
            os.environ.update(request["variables"])
            return request["argv"]
        print(number, flush=True)
        _, status, used = os.wait4(number, 0)  # with what its children used that it waited for
        print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, flush=True)
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
    import importlib

    import jax
    import keras

    import replicax  # noqa: F401

    for module in sys.argv[1:]:
        importlib.import_module(module)
    program = next_program()
    # What follows runs in the forked process, to its usual end: exit handlers, traceback, code.
    if program:
        # JAX has read it when it was imported.
        jax.config.update("jax_num_cpu_devices", int(os.environ["JAX_NUM_CPU_DEVICES"]))
        path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[1:1] = [folder for folder in path if folder not in sys.path]
        # What a program shows shall not depend on luck.
        keras.utils.set_random_seed(0)
        sys.argv = program[:1] if program[0] != "-c" else ["-c"]
        sys.argv += program[2:] if program[0] == "-c" else program[1:]
        if program[0] == "-c":
            sys.path.insert(0, "")
            exec(compile(program[1], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.path[0] = str(Path(program[0]).parent)
            runpy.run_path(program[0], run_name="__main__")
