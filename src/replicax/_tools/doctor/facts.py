"""The facts of this machine that matter to a program; `checks.py` judges them."""

from __future__ import annotations

import contextlib
import ctypes.util
import importlib.util
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from replicax._core.env import (
    KERAS_BACKEND,
    OF_JAX,
    PREALLOCATE,
    chips_on_bus,
    compilation_cache_folder,
    cores,
    environment_for_child,
    visible_gpus,
)
from replicax._core.machine import nvidia

_SHARED_MEMORY = Path("/dev/shm")
_ASK_JAX = "import jax; print(jax.default_backend(), jax.local_device_count())"
_WARNING = re.compile(r"^\w+Error: |Unable to initialize backend|not compatible with the installed")
_SECONDS = 120  # JAX waits for a TPU of another process, and large machines start slowly


@dataclass(frozen=True)
class Facts:
    """Facts about the machine and its software; an empty error means that there is none."""

    python: str
    versions: Mapping[str, str | None]  # by package; None if not installed
    wanted: Mapping[str, str]  # such as `>=0.10,<0.11`; empty without an installed Replicax
    backend: str | None  # `KERAS_BACKEND`
    platform: str  # empty if JAX does not start
    devices: int
    jax_error: str
    jax_warning: str  # why JAX goes without a plugin
    settings: Mapping[str, str]  # variables that are set and change JAX
    gpus: int  # of NVIDIA
    gpus_visible: int  # that `CUDA_VISIBLE_DEVICES` leaves
    driver: nvidia.Driver | None  # of these GPUs
    driver_error: str
    has_nccl_library: bool  # of the system
    chips: int
    cores: int  # that this process may use
    threads: int | None  # `NPROC`, the size of XLA's pool
    loopback_error: str
    shared_bytes: int | None  # of the memory that processes share
    cache: str | None  # the folder of compiled programs
    cache_error: str
    has_compiler: bool
    kernels: str | None  # the level that is loaded, such as `x86-64-v3`, and its other units
    kernels_off: str  # why none are loaded


_MODULES = {"scikit-learn": "sklearn"}
_WITHOUT_MODULE = tuple(
    name.format(cuda)
    for cuda in (12, 13)
    for name in ("jax-cuda{}-plugin", "jax-cuda{}-pjrt", "nvidia-nccl-cu{}")
)
PACKAGES = (
    *("jax", "jaxlib", "keras", "numpy", "ray", "libtpu", "tensorboard", "xprof"),
    *("matplotlib", "scikit-learn"),
    *_WITHOUT_MODULE,
)


def gather(environ: Mapping[str, str] | None = None) -> Facts:
    """Look at this machine; JAX starts in another process, because it keeps the chips of a TPU."""
    own = environment_for_child({}, environ=environ)  # as for a program that starts now
    driver, driver_error = _driver()  # before JAX, which would be on the GPUs, too
    gpus = len(driver.gpus) if driver else nvidia.count()
    backend, devices, error, warning = _devices(own)
    kernels, kernels_off = _kernels()
    cache = compilation_cache_folder(own)
    threads = own.get("NPROC", "")
    return Facts(
        python=platform.python_version(),
        versions={name: _version(name) for name in PACKAGES},
        wanted=_wanted(),
        backend=own.get(KERAS_BACKEND),
        platform=backend,
        devices=devices,
        jax_error=error,
        jax_warning=warning,
        settings={name: own[name] for name in OF_JAX if name in own},
        gpus=gpus,
        gpus_visible=len(visible_gpus(gpus, own)),
        driver=driver,
        driver_error=driver_error,
        has_nccl_library=gpus > 1 and ctypes.util.find_library("nccl") is not None,
        chips=chips_on_bus(),
        cores=cores(),
        threads=int(threads) if threads.isdecimal() else None,
        loopback_error=_loopback_error(),
        shared_bytes=_free(_SHARED_MEMORY),
        cache=None if cache is None else str(cache),
        cache_error="" if cache is None else _write_error(cache),
        has_compiler=any(map(shutil.which, ("cc", "gcc", "clang"))),
        kernels=kernels,
        kernels_off=kernels_off,
    )


def _version(package: str) -> str | None:
    module = _MODULES.get(package, package)
    if package not in _WITHOUT_MODULE and importlib.util.find_spec(module) is None:
        return None
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


def _wanted() -> dict[str, str]:
    """The version ranges in JAX's metadata, and in Replicax' own, including its extras."""
    try:
        own = metadata.requires("replicax") or []
        python = metadata.metadata("replicax")["Requires-Python"]
    except metadata.PackageNotFoundError:
        return {}
    of_jax: list[str] = []
    with contextlib.suppress(metadata.PackageNotFoundError):
        of_jax += [line for line in metadata.requires("jax") or [] if ";" not in line]  # no extras
    needs = map(Requirement, [*of_jax, *own])
    return {**{one.name: str(one.specifier) for one in needs if one.specifier}, "python": python}


def _driver() -> tuple[nvidia.Driver | None, str]:
    """The driver that `nvidia-smi` reports, or its error; neither if it is not installed."""
    if shutil.which("nvidia-smi") is None:
        return None, ""
    try:
        return nvidia.query(), ""
    except nvidia.NoAnswerError as error:
        return None, str(error)


def _devices(environ: Mapping[str, str]) -> tuple[str, int, str, str]:
    """The platform and number of devices that JAX has, the error if it does not start, a warning.

    JAX warns of a plugin that fails, and goes on without it.
    """
    command = [sys.executable, "-c", _ASK_JAX]
    own = {**environ, PREALLOCATE: "false"}  # others may be on the GPUs
    try:
        ran = subprocess.run(command, capture_output=True, text=True, env=own, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", 0, str(error), ""
    messages = ran.stderr.strip().splitlines()
    if ran.returncode:
        return "", 0, messages[-1] if messages else f"exit code {ran.returncode}", ""
    backend, count = ran.stdout.split()[-2:]
    warnings = [line for line in messages if _WARNING.search(line)]
    return backend, int(count), "", warnings[-1] if warnings else ""


def _kernels() -> tuple[str | None, str]:
    """The level of the loaded CPU kernels, or why none are loaded."""
    try:
        from replicax._cpu.kernels import NoKernelsError, load, multiplies_pairs

        return load() + (", with products of bfloat16" if multiplies_pairs() else ""), ""
    except ImportError:  # JAX is missing or broken
        return None, "JAX cannot be imported"
    except NoKernelsError as why:
        return None, str(why)


def _loopback_error() -> str:
    """Why a socket cannot be opened and reached at 127.0.0.1."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(5)
            with socket.create_connection(server.getsockname(), timeout=5) as there:
                here, _ = server.accept()
                with here:
                    there.sendall(b"x")
                    here.settimeout(5)
                    return "" if here.recv(1) == b"x" else "nothing arrived"
    except OSError as error:
        return str(error)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _write_error(folder: Path) -> str:
    """Why this user cannot write into a folder, or make it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return str(error)
