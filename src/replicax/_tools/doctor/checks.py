"""The checks of an installation: each is a function of the facts that were found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, final

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from replicax._core.env import (
    CUDA_VISIBLE_DEVICES,
    GPU_FRACTION,
    JAX_PLATFORMS,
    OF_GPU_MEMORY,
    OLD_GPU_FRACTION,
    gpu_share_at_start,
    leaves,
)
from replicax._core.machine import nvidia
from replicax._core.machine.memory import GIB, size

if TYPE_CHECKING:
    from replicax._core.machine.nvidia import Driver, Gpu
    from replicax._tools.doctor.facts import Facts


OK, WARN, WRONG = "ok", "warn", "wrong"


@final
@dataclass(frozen=True)
class Check:
    """The result of a check: `ok`, `warn` if it costs time or a feature, or `wrong`.

    `fix` is the command that fixes it, or what to do; empty if there is nothing to do.
    """

    name: str
    level: str
    found: str
    fix: str = ""


def checked(facts: Facts) -> list[Check]:
    """The results of all checks; GPUs are checked if there are any, or if their driver fails."""
    gpus = list(CHECKS_OF_GPUS.items())
    of_gpus = gpus if facts.gpus else gpus[: bool(facts.driver_error)]  # of the driver alone
    return [Check(name, *check(facts)) for name, check in [*CHECKS.items(), *of_gpus]]


def check_python(facts: Facts) -> tuple[str, ...]:
    wanted = facts.wanted.get("python", "")
    if facts.python in SpecifierSet(wanted):
        return OK, facts.python
    return WRONG, f"{facts.python}, not {wanted}", "install Python 3.11 or later"


def check_replicax(facts: Facts) -> tuple[str, ...]:
    if facts.wanted:
        return OK, "installed"
    return WARN, "not installed, only on the path: no versions to compare with", "pip install ."


def check_backend(facts: Facts) -> tuple[str, ...]:
    if facts.backend in (None, "jax"):
        return OK, "jax"
    found = f"KERAS_BACKEND={facts.backend}: Replicax runs Keras on JAX"
    return WRONG, found, "export KERAS_BACKEND=jax"


def check_devices(facts: Facts) -> tuple[str, ...]:
    if facts.jax_error:
        return WRONG, f"JAX does not start: {facts.jax_error}", "JAX_PLATFORMS=cpu replicax doctor"
    found = f"{facts.devices} of kind {facts.platform}"
    if facts.platform != "cpu" or not facts.gpus:
        return OK, found
    found += f", beside {facts.gpus} GPU{'s' * (facts.gpus > 1)}"
    platforms = facts.settings.get(JAX_PLATFORMS)
    if not leaves(platforms, "cuda"):
        found += f", which JAX_PLATFORMS={platforms} keeps from JAX"
        return WARN, found, "unset JAX_PLATFORMS"
    if not facts.gpus_visible:
        found += f", which CUDA_VISIBLE_DEVICES={facts.settings[CUDA_VISIBLE_DEVICES]} hides"
        return WARN, found, "unset CUDA_VISIBLE_DEVICES"
    why = facts.jax_warning or "JAX does not use them"
    fix = 'JAX_PLATFORMS=cuda python -c "import jax; jax.devices()"     # says why'
    return WRONG, f"{found}: {why}", fix


def check_tpu(facts: Facts) -> tuple[str, ...]:
    libtpu = facts.versions["libtpu"]
    if not facts.chips:
        return OK, f"no TPU here; libtpu {libtpu or 'is not installed'}"
    if libtpu is None:
        found = f"{facts.chips} chips, and no libtpu to run them"
        return WRONG, found, 'pip install "replicax[tpu]"'
    if facts.platform != "tpu":
        found = f"{facts.chips} chips, which JAX does not use: another process may have them"
        return WRONG, found, "lsof /dev/accel* /dev/vfio/*"
    return OK, f"{facts.chips} chips, libtpu {libtpu}"


def check_loopback(facts: Facts) -> tuple[str, ...]:
    if not facts.loopback_error:
        return OK, "127.0.0.1 can be reached"
    found = f"processes of this machine cannot talk: {facts.loopback_error}"
    return WRONG, found, "ip link set lo up"


def check_shared_memory(facts: Facts) -> tuple[str, ...]:
    """Ray keeps objects in it; parameter servers keep messages in it within one machine."""
    room = facts.shared_bytes
    if room is None:
        return OK, "no /dev/shm on this system"
    if room >= GIB:
        return OK, f"{size(room)} free in /dev/shm"
    found = f"{size(room)} free in /dev/shm: parameter servers and Ray want 1 GiB"
    return WARN, found, "mount -o remount,size=2G /dev/shm     # of a container: --shm-size=2g"


def check_ray(facts: Facts) -> tuple[str, ...]:
    if facts.versions["ray"] is None:
        return OK, "not installed; only parameter servers on Ray need it"
    return _in_range(facts, "ray", extra="ps")


def check_cache(facts: Facts) -> tuple[str, ...]:
    if facts.cache is None:
        return WARN, "off: each start compiles all programs again", "unset RX_COMPILATION_CACHE"
    if facts.cache_error:
        found = f"{facts.cache} cannot be written to: {facts.cache_error}"
        return WARN, found, "export RX_COMPILATION_CACHE=FOLDER     # one that you can write to"
    return OK, facts.cache


def check_threads(facts: Facts) -> tuple[str, ...]:
    """XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread."""
    if facts.platform != "cpu" or facts.devices < 2:
        return OK, f"{facts.cores} cores"
    pool = facts.threads or facts.cores
    if pool >= 2 * facts.devices:
        return OK, f"{pool} for {facts.devices} devices of the CPU"
    found = f"{pool} for {facts.devices} devices of the CPU: an all-reduce may stand still"
    return WARN, found, f"export NPROC={max(8, 2 * facts.devices)}"


def check_kernels(facts: Facts) -> tuple[str, ...]:
    """Kernels are built when Replicax is installed, if there is a C compiler."""
    if facts.kernels or facts.platform != "cpu":
        return OK, facts.kernels or "not needed on these devices"
    fix = "pip install --force-reinstall --no-deps ."
    if not facts.has_compiler:
        fix += "     # first install a C compiler, such as gcc"
    return WARN, f"off: {facts.kernels_off}", fix


def check_tensorboard(facts: Facts) -> tuple[str, ...]:
    missing = [name for name in ("tensorboard", "xprof") if facts.versions[name] is None]
    if not missing:
        return OK, f"{facts.versions['tensorboard']}, with xprof"
    found = f"without {' and '.join(missing)}: no curves, or no traces"
    return WARN, found, f"pip install {' '.join(missing)}"


def check_report(facts: Facts) -> tuple[str, ...]:
    """`import keras` imports both where installed, which takes a second or more each time."""
    parts = ("matplotlib", "scikit-learn")
    missing = [name for name in parts if facts.versions[name] is None]
    if not missing:
        found = ", ".join(f"{name} {facts.versions[name]}" for name in parts)
        return OK, f"{found}; `import keras` imports them"
    found = f"without {' and '.join(missing)}: no `replicax compare`, or no pictures"
    return WARN, found, 'pip install "replicax[report]"'


# By the number in the name of JAX's plugin: the driver from which CUDA runs, and the oldest GPUs.
_OLDEST_DRIVER = {12: 525, 13: 580}
_OLDEST_GPU = {12: (5, 2), 13: (7, 5)}


def check_driver(facts: Facts) -> tuple[str, ...]:
    """The driver decides which of JAX's plugins can run."""
    driver = facts.driver
    if driver is None:
        level = WRONG if _plugins(facts) and facts.platform != "gpu" else WARN
        found = facts.driver_error or "no nvidia-smi, which shows the driver's version"
        fix = "nvidia-smi     # for a container: NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        return level, found, fix
    if _offered(driver) < min(_OLDEST_DRIVER):
        found = f"{driver.version} offers no version of CUDA that JAX is built for"
        return WRONG, found, "install driver 580 or later"
    highest = _dotted(driver.cuda) if driver.cuda else f"{_offered(driver)}, by its number"
    return OK, f"{driver.version}, up to CUDA {highest}"


def check_gpus(facts: Facts) -> tuple[str, ...]:
    if facts.driver is None:
        return OK, f"{facts.gpus}"
    kinds = Counter((one.name, one.memory_bytes, one.capability) for one in facts.driver.gpus)
    found = "; ".join(_kind(count, *kind) for kind, count in kinds.items())
    hidden = facts.gpus - facts.gpus_visible
    if hidden:
        found += f"; {hidden} hidden by CUDA_VISIBLE_DEVICES"
    if _oldest(facts) < _OLDEST_GPU[12]:
        return WRONG, f"{found}: too old for JAX", "export JAX_PLATFORMS=cpu"
    return OK, found


def check_plugin(facts: Facts) -> tuple[str, ...]:
    """JAX drives GPUs by a plugin, of jaxlib's version and of no later CUDA than the driver's."""
    best = best_cuda(facts)
    jax, jaxlib = facts.versions["jax"], facts.versions["jaxlib"]
    install = f'pip install "jax[cuda{best}]=={jax}"'
    plugins = _plugins(facts)
    if not plugins:
        return WRONG, "not installed: JAX computes on the CPU", install
    found = ", ".join(f"jax-cuda{cuda}-plugin {one}" for cuda, one in plugins.items())
    wrong = min(plugins, key=lambda cuda: cuda == best)
    remove = f"pip uninstall jax-cuda{wrong}-plugin jax-cuda{wrong}-pjrt"
    if len(plugins) > 1:
        return WRONG, f"{found}: both drive the same GPUs", remove
    ((cuda, version),) = plugins.items()
    if _oldest(facts) < _OLDEST_GPU[cuda]:
        oldest = _dotted(_OLDEST_GPU[cuda])
        found += f": CUDA {cuda} needs GPUs of compute capability {oldest} or later"
        return WRONG, found, f"{remove} && {install}"
    if facts.driver and _offered(facts.driver) < cuda:
        found += f": CUDA {cuda} needs driver {_OLDEST_DRIVER[cuda]} or later"
        return WRONG, found, f"{remove} && {install}"
    pjrt = facts.versions[f"jax-cuda{cuda}-pjrt"]
    if not _same(version, jaxlib) or not _same(pjrt, jaxlib):
        found += f", jax-cuda{cuda}-pjrt {pjrt or 'not installed'}, with jaxlib {jaxlib}"
        return WRONG, found, f'pip install "jax[cuda{cuda}]=={jax}"'
    return OK, found


def check_nccl(facts: Facts) -> tuple[str, ...]:
    """It carries what several GPUs exchange."""
    package = f"nvidia-nccl-cu{next(iter(_plugins(facts)), best_cuda(facts))}"
    version = facts.versions[package]
    if version or facts.has_nccl_library:
        return OK, version or "a library of the system"
    if facts.gpus_visible < 2:
        return OK, "not installed; only several GPUs need it"
    return WRONG, "not installed: several GPUs cannot exchange gradients", f"pip install {package}"


def check_gpu_memory(facts: Facts) -> tuple[str, ...]:
    """JAX takes a share of each GPU at once, which it does not get beside a large program."""
    share = gpu_share_at_start(facts.settings)
    set_ = [f"{name}={facts.settings[name]}" for name in OF_GPU_MEMORY if name in facts.settings]
    takes = f"JAX takes {share:.0%} of each at once" if share else "JAX takes it as it needs it"
    usage = "; ".join([takes, *set_])
    if facts.driver is None:
        return OK, usage
    free = {
        one: one.free_bytes / one.memory_bytes
        for one in _visible(facts)
        if one.memory_bytes and one.free_bytes is not None
    }
    lines = [_free_memory(one, facts.driver) for one in free]
    found = "; ".join([*dict.fromkeys(lines), usage])
    least = min(free.values(), default=1.0)
    if least >= share:
        return OK, found
    # JAX refuses to start with both.
    name = OLD_GPU_FRACTION if OLD_GPU_FRACTION in facts.settings else GPU_FRACTION
    return WARN, found, f"export {name}={int(90 * least) / 100}     # or end the other program"


def _free_memory(gpu: Gpu, driver: Driver) -> str:
    holding = [
        f"{Path(one.name).name} ({one.pid})"
        + (f" holds {size(one.memory_bytes)}" if one.memory_bytes else "")
        for one in driver.processes
        if one.uuid == gpu.uuid
    ]
    free = f"{size(gpu.free_bytes or 0)} free"
    return f"GPU {gpu.number}: {free}, {', '.join(holding)}" if holding else free


def _offered(driver: Driver) -> int:
    """The highest version of CUDA that the driver reports, or that follows from its own version."""
    if driver.cuda:
        return driver.cuda[0]
    major = driver.version.partition(".")[0]
    branch = int(major) if major.isdecimal() else 0
    return max((cuda for cuda, least in _OLDEST_DRIVER.items() if branch >= least), default=0)


def best_cuda(facts: Facts) -> int:
    """The plugin that fits the driver and every GPU."""
    offered = _offered(facts.driver) if facts.driver else 13
    return 13 if offered >= 13 and _oldest(facts) >= _OLDEST_GPU[13] else 12


def _oldest(facts: Facts) -> tuple[int, int]:
    """The lowest compute capability; a high one if the driver says none."""
    return min((one.capability for one in _visible(facts) if one.capability), default=(99, 0))


def _visible(facts: Facts) -> list[Gpu]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves."""
    by_uuid = {one.uuid: one for one in facts.driver.gpus} if facts.driver else {}
    return [by_uuid[uuid] for uuid in nvidia.visible_uuids(list(by_uuid), facts.settings)]


def _plugins(facts: Facts) -> dict[int, str]:
    found = {cuda: facts.versions[f"jax-cuda{cuda}-plugin"] for cuda in (13, 12)}
    return {cuda: version for cuda, version in found.items() if version}


def _kind(count: int, name: str, memory: int | None, capability: tuple[int, int] | None) -> str:
    parts = [
        f"{count} {name}",
        *([size(memory)] if memory else []),
        *([f"compute capability {_dotted(capability)}"] if capability else []),
    ]
    return ", ".join(parts)


def _same(version: str | None, jaxlib: str | None) -> bool:
    """JAX compares the numbers alone, too."""
    if version is None or jaxlib is None:
        return False
    return Version(version).release == Version(jaxlib).release


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _in_range(facts: Facts, package: str, *, extra: str = "") -> tuple[str, ...]:
    version, wanted = facts.versions[package], facts.wanted.get(package, "")
    if version is not None and SpecifierSet(wanted).contains(version, prereleases=True):
        return OK, version
    found = f"{version or 'not installed'}, tested with {wanted or 'any version'}"
    fix = f'pip install "replicax[{extra}]"' if extra else f'pip install "{package}{wanted}"'
    return WRONG, found, fix


# The result of each check: its level, its finding, and the command that fixes it.
CHECKS: Mapping[str, Callable[[Facts], tuple[str, ...]]] = {
    "Python": check_python,
    "Replicax": check_replicax,
    "JAX": partial(_in_range, package="jax"),
    "jaxlib": partial(_in_range, package="jaxlib"),
    "Keras": partial(_in_range, package="keras"),
    "NumPy": partial(_in_range, package="numpy"),
    "Keras' backend": check_backend,
    "devices": check_devices,
    "TPU": check_tpu,
    "loopback": check_loopback,
    "shared memory": check_shared_memory,
    "Ray": check_ray,
    "compilation cache": check_cache,
    "threads": check_threads,
    "CPU kernels": check_kernels,
    "TensorBoard": check_tensorboard,
    "reports": check_report,
}
CHECKS_OF_GPUS: Mapping[str, Callable[[Facts], tuple[str, ...]]] = {
    "NVIDIA driver": check_driver,
    "GPUs": check_gpus,
    "CUDA plugin": check_plugin,
    "NCCL": check_nccl,
    "GPU memory": check_gpu_memory,
}
