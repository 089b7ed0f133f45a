"""What a benchmark ran on, so that its numbers can be read later."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

BUSY = 0.5  # of the cores: from here on others disturb what is measured
VERSIONS = "import importlib.metadata as m; print(*(m.version(n) for n in {names!r}))"


def describe(tensorflow: str | None, torch: str | None = None) -> dict[str, Any]:
    """The processor, its cores, the versions, and the load before the benchmark begins."""
    names = ("jax", "keras", "numpy")
    versions = {name: importlib.metadata.version(name) for name in names}
    if tensorflow:
        versions |= versions_of(tensorflow, ("tensorflow", "tf_keras"))
    if torch:
        versions |= versions_of(torch, ("torch",))
    return {
        **({"gpu": card} if (card := gpu()) else {}),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def one_line(machine: dict[str, Any]) -> str:
    """The processor, the system and the versions, as the tables give them."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    card = f"{machine['gpu']}; " if "gpu" in machine else ""
    return (
        f"{card}{machine['processor']}, {machine['cores']} cores, {machine['system']}; "
        f"Python {machine['python']}, {versions}"
    )


def described(tensorflow: str | None, console: Console, torch: str | None = None) -> dict[str, Any]:
    """The same as `describe`, with warnings if others compute, too, or TensorFlow is left out."""
    facts = describe(tensorflow, torch)
    if facts["load"][0] > BUSY * facts["cores"]:
        console.print(f"the machine is busy (load {facts['load'][0]}): the numbers will be noisy")
    if not tensorflow:
        console.print("TensorFlow is left out: name a Python that has it with --tensorflow")
    return facts


def gpu() -> str:
    """Names, drivers and memory of NVIDIA's GPUs, where there are any."""
    if not shutil.which("nvidia-smi"):
        return ""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:  # as where the driver hangs
        return ""
    return "; ".join(done.stdout.splitlines()) if done.returncode == 0 else ""


def processor() -> str:
    """Its name, where Linux says it."""
    with_names = Path("/proc/cpuinfo")
    text = with_names.read_text() if with_names.exists() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def versions_of(python: str, names: tuple[str, ...]) -> dict[str, str]:
    """The versions of packages in another environment."""
    done = subprocess.run(
        [python, "-c", VERSIONS.format(names=names)], capture_output=True, text=True, check=True
    )
    return dict(zip(names, done.stdout.split(), strict=True))
