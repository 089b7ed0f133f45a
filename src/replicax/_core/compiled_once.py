"""What several workers of a machine run is compiled by one of them, on all cores of the machine.

By itself each would compile it, on cores that they share, and at each start: in JAX's cache a
program for CPUs has another name in each process, and only the first process writes there. So the
first worker of a machine compiles, and keeps the program in a file for the others and for the next
start.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import pickle
import re
import secrets
import socket
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO, final

import jax
from jax.experimental.serialize_executable import serialize

from replicax._control import current
from replicax._core.compilation_cache import common_programs
from replicax._core.compiling import found_again_in
from replicax._core.convolutions.keys import names_of
from replicax._core.env import XLA_FLAGS, variables_of_jax

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CACHE = "/jax/compilation_cache/"
# Stands for what a process does when JAX divides an operation; it is done when this is compiled.
_ADDRESS = re.compile(r'(@CustomSPMDPartitioning\(.*?backend_config = )"[^"]*"')
# Of JAX: how XLA compiles. What the program says of itself is in its text.
_SETTINGS = (
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
)
# What a program of JAX is described by: its arguments, results and their layouts.
_DESCRIPTIONS = frozenset(
    [
        "AbstractDevice",
        "AbstractMesh",
        "AllArgsInfo",
        "ArgInfo",
        "AutoLayout",
        "AxisType",
        "DebugInfo",
        "DeviceList",
        "GSPMDSharding",
        "KeyTy",
        "Layout",
        "ManualAxisType",
        "MemorySpace",
        "Mesh",
        "NamedSharding",
        "P",
        "PRNGImpl",
        "PartitionSpec",
        "ShapedArray",
        "SingleDeviceSharding",
        "UnloadedMeshExecutable",
        "_reconstruct",
        "_unpickle_named_sharding",
        "dtype",
        "ndarray",
    ]
)
_OF_RANDOM_KEYS = ("jax._src.random.", "jax._src.prng")
_log = logging.getLogger("replicax")


def compiled_once(program: Any, *args: Any) -> Any:
    """Compile a program for arguments like these, in one process of this machine if that can be.

    All workers call this at the same point; nothing is computed.

    Args:
        program: What `compiled` gave, the same on all workers.
        args: What it is going to be called with.

    Returns:
        What to call instead, with such arguments: the program, or what was compiled elsewhere.
    """
    channel, devices = current(), _devices(args)
    if channel.size == 1 or not devices or devices[0].platform != "cpu":
        return program
    # What calls Python has an address of this process.
    traced = program.trace(*args)
    if traced.jaxpr.effects or any("callback" in name for name in names_of(traced.jaxpr)):
        return program
    # To lower it makes known to this process what a program refers to: kernels, by their names.
    with found_again_in(program, args):
        lowered = traced.lower()
        path = _path(lowered, program, devices)
        here = path and [_machine(), str(path)]
        is_first = channel.exchange("machine that compiles", here).index(here) == channel.index
        is_kept = path is not None and path.exists()
        try:
            if is_first and path is not None and not is_kept:
                _keep(path, lowered)
        finally:  # whatever happened, the others wait for this
            channel.barrier("program is compiled")
    if path is None or (is_first and not is_kept):
        return program
    loaded = _loaded(path, lowered, devices)
    return program if loaded is None else _Loaded(program, loaded)


@final
class _Loaded:
    """A program that was compiled elsewhere, for arguments of one kind.

    Args:
        program: The same, to be compiled here for other ones.
        loaded: What was compiled.
    """

    def __init__(self, program: Any, loaded: Any) -> None:
        self._program, self._loaded = program, loaded
        self.trace, self.lower = program.trace, program.lower

    def __call__(self, *args: Any) -> Any:
        try:
            return self._loaded(*args)
        except (TypeError, ValueError):  # JAX looks at all arguments before it takes one
            return self._program(*args)


def _devices(args: Any) -> list[Any]:
    """The devices of a program, in its order, if its arguments are spread over a mesh."""
    layouts: list[Any] = [getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args)]
    meshes: list[Any] = [one.mesh for one in layouts if isinstance(one, jax.NamedSharding)]
    return list(meshes[0].devices.flat) if meshes else []


def _path(lowered: Any, program: Any, devices: list[Any]) -> Path | None:
    """A file by a name for all that the compiled program depends on."""
    folder = common_programs()  # one for each kind of CPU
    text = _ADDRESS.sub(r"\1", lowered.as_text())
    options = getattr(program, "options", {})
    settings = variables_of_jax().get(XLA_FLAGS), *map(jax.config.values.get, _SETTINGS)
    where = jax.device_count(), [device.id for device in devices]
    about = (jax.__version__, version("jaxlib"), *settings, *where, options, text)
    return folder and folder / hashlib.sha256(repr(about).encode()).hexdigest()


def _machine() -> str:
    """What the processes that run on one machine have in common."""
    try:
        return _BOOT.read_text()
    except OSError:
        return socket.gethostname()


def _keep(path: Path, lowered: Any) -> None:
    try:
        before = Counter(_events())
        compiled = lowered.compile()
        news = _events() - before
        # What JAX has read, here or earlier, cannot be written again: it would lack functions.
        if not news[_CACHE + "compile_requests_use_cache"] or news[_CACHE + "cache_hits"]:
            return
        payload, _, _ = serialize(compiled)
        part = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        part.write_bytes(payload)
        os.replace(part, path)
    except Exception as error:  # if the program is wrong, its call says so
        _log.info("A program is not kept for the other workers: %s", error)


def _loaded(path: Path, lowered: Any, devices: list[Any]) -> Any:
    try:
        with open(path, "rb") as file:
            unloaded, args, no_kwargs = _Reader(file, devices).load()
        loaded = jax.stages.Compiled(
            unloaded.load(), [], lowered.in_tree.unflatten(args), lowered.out_tree, no_kwargs
        )
        os.utime(path)  # when it was used
        return loaded
    except Exception as error:
        _log.info("A program that another worker has compiled cannot be loaded: %s", error)
        with suppress(OSError):  # so that the next start may write it anew
            path.unlink(missing_ok=True)
        return None


@final
class _Reader(pickle.Unpickler):
    """Reads what `serialize` wrote, as `deserialize_and_load` does, which would call anything.

    Args:
        file: The file.
        devices: What the program is for.
    """

    def __init__(self, file: BinaryIO, devices: list[Any]) -> None:
        super().__init__(file)
        self._devices = devices

    def find_class(self, module: str, name: str, /) -> Any:
        """Called by `load` for every class and function that the file names."""
        if module.partition(".")[0] in ("jax", "jaxlib", "numpy"):
            if name in _DESCRIPTIONS:
                return super().find_class(module, name)
            if name.isidentifier() and module.startswith(_OF_RANDOM_KEYS):
                found = super().find_class(module, name)
                if getattr(found, "__module__", "") == module:  # its own, nothing imported there
                    return found
        raise pickle.UnpicklingError(f"a compiled program does not refer to {module}.{name}")

    def persistent_load(self, pid: Any, /) -> Any:
        """Called by `load` for executables, devices and the client."""
        client = self._devices[0].client
        match pid:
            case ("exec", code):
                return client.deserialize_executable(code, self._devices)
            case ("device", number):
                return next(device for device in self._devices if device.id == number)
            case ("client",):
                return client
            case _:
                raise pickle.UnpicklingError(f"unknown: {pid!r}")


@functools.cache
def _events() -> Counter[str]:
    """How often each event of JAX has happened since this was called first."""
    events: Counter[str] = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: events.update([event]))
    return events
