"""A Ray cluster whose nodes are machines with addresses of their own."""

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from rays import SETTINGS

from . import network

PORT = 6379
NAMES = ("host0", "host1", "host2")
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 32 * "5a"}


@contextmanager
def ray_machines(folder, path, **environment):
    """Three machines with a Ray on them, whose head is the first."""
    own = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": path,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "RX_COMPILATION_CACHE": "off",
        **SETTINGS,
        **TOKEN,
        **environment,
    }
    # Ray's sockets have long names, and a socket's path has room for 107 characters.
    with tempfile.TemporaryDirectory() as short, network.machines(folder, NAMES, own) as net:
        head = net.addresses[NAMES[0]]
        for name, address in net.addresses.items():
            first = ["--head", "--port", PORT, "--include-dashboard", "false"]
            first += ["--temp-dir", short]
            joins = first if address == head else ["--address", f"{head}:{PORT}"]
            command = ["ray", "start", "--num-cpus", 2, "--object-store-memory", 80 << 20]
            node = net.popen(name, *command, "--node-ip-address", address, *joins, folder=folder)
            said, _ = node.communicate(timeout=100)
            assert node.returncode == 0, said
        yield net
