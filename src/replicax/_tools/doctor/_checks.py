"""The checks of an installation: each is a function of the facts that were found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from packaging.specifiers import SpecifierSet

from replicax._tools.plan._chips import GIB, size

if TYPE_CHECKING:
    from replicax._tools.doctor._facts import Facts

OK, WARN, WRONG = "ok", "warn", "wrong"


@final
@dataclass(frozen=True)
class Check:
    """What one check says: `ok`, `warn` for what costs time or a feature, or `wrong`.

    `fix` is the command that mends it, or what to do; empty if nothing is to be done.
    """

    name: str
    level: str
    found: str
    fix: str = ""


def checked(facts: Facts) -> list[Check]:
    """What all checks say."""
    return [check(facts) for check in CHECKS]


def check_python(facts: Facts) -> Check:
    wanted = facts.wanted.get("python", "")
    if facts.python in SpecifierSet(wanted):
        return Check("Python", OK, facts.python)
    return Check("Python", WRONG, f"{facts.python}, not {wanted}", "install Python 3.11 or later")


def check_replicax(facts: Facts) -> Check:
    if facts.wanted:
        return Check("Replicax", OK, "installed")
    found = "not installed, only on the path: no versions to compare with"
    return Check("Replicax", WARN, found, "pip install .")


def check_jax(facts: Facts) -> Check:
    return _in_range(facts, "jax", "JAX")


def check_jaxlib(facts: Facts) -> Check:
    jax, jaxlib = facts.versions["jax"], facts.versions["jaxlib"]
    if jaxlib is not None and jaxlib == jax:
        return Check("jaxlib", OK, jaxlib)
    fix = f"pip install jaxlib=={jax}" if jax else "pip install jax"
    return Check("jaxlib", WRONG, f"{jaxlib or 'not installed'}, with JAX {jax}", fix)


def check_keras(facts: Facts) -> Check:
    return _in_range(facts, "keras", "Keras")


def check_numpy(facts: Facts) -> Check:
    return _in_range(facts, "numpy", "NumPy")


def check_backend(facts: Facts) -> Check:
    if facts.backend in (None, "jax"):
        return Check("Keras' backend", OK, "jax")
    found = f"KERAS_BACKEND={facts.backend}: Replicax runs Keras on JAX"
    return Check("Keras' backend", WRONG, found, "export KERAS_BACKEND=jax")


def check_devices(facts: Facts) -> Check:
    if facts.jax_error:
        fix = "JAX_PLATFORMS=cpu replicax doctor"
        return Check("devices", WRONG, f"JAX does not start: {facts.jax_error}", fix)
    found = f"{facts.devices} of kind {facts.platform}"
    if facts.platform == "cpu" and facts.gpus:
        why = "JAX cannot load its driver" if facts.has_gpu_plugin else "JAX has no driver for them"
        fix = "nvidia-smi" if facts.has_gpu_plugin else 'pip install "jax[cuda13]"'
        return Check("devices", WRONG, f"{found}, beside {facts.gpus} GPUs: {why}", fix)
    return Check("devices", OK, found)


def check_tpu(facts: Facts) -> Check:
    libtpu = facts.versions["libtpu"]
    if not facts.chips:
        found = f"no TPU here; libtpu {libtpu or 'is not installed'}"
        return Check("TPU", OK, found)
    if libtpu is None:
        found = f"{facts.chips} chips, and no libtpu to run them"
        return Check("TPU", WRONG, found, 'pip install "replicax[tpu]"')
    if facts.platform != "tpu":
        found = f"{facts.chips} chips, which JAX does not use: another process may have them"
        return Check("TPU", WRONG, found, "lsof /dev/accel* /dev/vfio/*")
    return Check("TPU", OK, f"{facts.chips} chips, libtpu {libtpu}")


def check_loopback(facts: Facts) -> Check:
    if not facts.loopback_error:
        return Check("loopback", OK, "127.0.0.1 can be reached")
    found = f"processes of this machine cannot talk: {facts.loopback_error}"
    return Check("loopback", WRONG, found, "ip link set lo up")


def check_shared_memory(facts: Facts) -> Check:
    """Ray keeps objects in it; parameter servers keep messages in it within one machine."""
    room = facts.shared_bytes
    if room is None:
        return Check("shared memory", OK, "no /dev/shm on this system")
    if room >= GIB:
        return Check("shared memory", OK, f"{size(room)} free in /dev/shm")
    found = f"{size(room)} free in /dev/shm: parameter servers and Ray want 1 GiB"
    fix = "mount -o remount,size=2G /dev/shm     # of a container: --shm-size=2g"
    return Check("shared memory", WARN, found, fix)


def check_ray(facts: Facts) -> Check:
    if facts.versions["ray"] is None:
        found = "not installed; only parameter servers on Ray need it"
        return Check("Ray", OK, found)
    return _in_range(facts, "ray", "Ray", extra="ps")


def check_cache(facts: Facts) -> Check:
    if facts.cache is None:
        found = "off: each start compiles all programs again"
        return Check("compilation cache", WARN, found, "unset RX_COMPILATION_CACHE")
    if facts.cache_error:
        found = f"{facts.cache} cannot be written to: {facts.cache_error}"
        fix = "export RX_COMPILATION_CACHE=FOLDER     # one that you can write to"
        return Check("compilation cache", WARN, found, fix)
    return Check("compilation cache", OK, facts.cache)


def check_threads(facts: Facts) -> Check:
    """XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread."""
    if facts.platform != "cpu" or facts.devices < 2:
        return Check("threads", OK, f"{facts.cores} cores")
    pool = facts.threads or facts.cores
    if pool >= 2 * facts.devices:
        return Check("threads", OK, f"{pool} for {facts.devices} devices of the CPU")
    found = f"{pool} for {facts.devices} devices of the CPU: an all-reduce may stand still"
    return Check("threads", WARN, found, f"export NPROC={max(8, 2 * facts.devices)}")


def check_kernels(facts: Facts) -> Check:
    """Kernels are built when Replicax is installed, if there is a C compiler."""
    if facts.kernels or facts.platform != "cpu":
        return Check("CPU kernels", OK, facts.kernels or "not needed on these devices")
    fix = "pip install --force-reinstall --no-deps ."
    if not facts.has_compiler:
        fix += "     # first install a C compiler, such as gcc"
    return Check("CPU kernels", WARN, f"off: {facts.kernels_off}", fix)


def check_tensorboard(facts: Facts) -> Check:
    missing = [name for name in ("tensorboard", "xprof") if facts.versions[name] is None]
    if not missing:
        return Check("TensorBoard", OK, f"{facts.versions['tensorboard']}, with xprof")
    found = f"without {' and '.join(missing)}: no curves, or no traces"
    return Check("TensorBoard", WARN, found, f"pip install {' '.join(missing)}")


def check_report(facts: Facts) -> Check:
    """`import keras` imports both where installed, which takes a second or more each time."""
    parts = ("matplotlib", "scikit-learn")
    missing = [name for name in parts if facts.versions[name] is None]
    if not missing:
        found = ", ".join(f"{name} {facts.versions[name]}" for name in parts)
        return Check("reports", OK, f"{found}; `import keras` imports them")
    found = f"without {' and '.join(missing)}: no `replicax compare`, or no pictures"
    return Check("reports", WARN, found, 'pip install "replicax[report]"')


CHECKS: Sequence[Callable[[Facts], Check]] = (
    check_python,
    check_replicax,
    check_jax,
    check_jaxlib,
    check_keras,
    check_numpy,
    check_backend,
    check_devices,
    check_tpu,
    check_loopback,
    check_shared_memory,
    check_ray,
    check_cache,
    check_threads,
    check_kernels,
    check_tensorboard,
    check_report,
)


def _in_range(facts: Facts, package: str, name: str, *, extra: str = "") -> Check:
    version, wanted = facts.versions[package], facts.wanted.get(package, "")
    if version is not None and SpecifierSet(wanted).contains(version, prereleases=True):
        return Check(name, OK, version)
    found = f"{version or 'not installed'}, tested with {wanted or 'any version'}"
    fix = f'pip install "replicax[{extra}]"' if extra else f'pip install "{package}{wanted}"'
    return Check(name, WRONG, found, fix)
