"""`far.py FOLDER HOST COMMAND` does what `ssh HOST COMMAND` does, for the machines of a network.

The command has a session, an environment and a folder of its own there. What it reads and prints
goes through this process, so stopping it does what a network does that delivers nothing.
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path


def main(folder, *words):
    host, *command = (word for word in words if not word.startswith("-"))
    machines = json.loads(Path(folder, "machines.json").read_text())
    if host not in machines:
        print(f"ssh: Could not resolve hostname {host}: Name or service not known", file=sys.stderr)
        return 255
    Path(folder, f"ssh-{host}-{os.getpid()}").touch()
    far = subprocess.Popen(
        [*machines[host], "setsid", "--wait", "sh", "-c", " ".join(command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    )
    outputs = [
        threading.Thread(target=copy, args=(pipe.fileno(), number))
        for pipe, number in ((far.stdout, 1), (far.stderr, 2))
    ]
    threading.Thread(target=bring_input, args=(far.stdin,), daemon=True).start()
    for output in outputs:
        output.start()
    for output in outputs:
        output.join()
    code = far.wait()
    return code if code >= 0 else 128 - code


def copy(source, target):
    try:
        while data := os.read(source, 1 << 16):
            os.write(target, data)
    except OSError:  # nobody reads it any more
        return


def bring_input(pipe):
    copy(0, pipe.fileno())
    pipe.close()


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # a thread may still wait for input
