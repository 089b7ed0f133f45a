"""The environment variables of Replicax; only `launch` sets others, for the processes it starts.

`KERAS_BACKEND`          set to `jax` on `import replicax` when Keras is not imported yet and it is
                         unset.
`CUDA_VISIBLE_DEVICES`   set by `SlurmClusterResolver` to the GPUs of this task; in workers of
                         parameter servers to the GPU that they share, with their part of it.
`NCCL_ALGO`              set to `Ring` by `CommunicationImplementation.RING` if it is unset.
`TPU_SKIP_MDS_QUERY`, `ALLOW_MULTIPLE_LIBTPU_LOAD`  set while libtpu starts only to compile: else
                         it asks Google's metadata server, and only one process may load it.
`TPU_LIBRARY_PATH`       set when a strategy is made, on a machine without a TPU, so that JAX does
                         not load libtpu; also by `replicax compare` and `replicax devices`.
`XLA_CLIENT_MEM_FRACTION`, `XLA_PYTHON_CLIENT_…`  shown by `replicax doctor` and `compare`.
`XLA_PYTHON_CLIENT_PREALLOCATE`, `XLA_FLAGS`  set by functions of `tf.config`: whether JAX takes
                         most of a GPU's memory at once; deterministic kernels on GPUs.
`RX_TLS_CERT`, `RX_TLS_KEY`, `RX_TLS_CA`  read by the processes of a parameter-server cluster:
                         files with a certificate, its key, and the authority that signed it.
`RX_WATCHDOG_SECONDS`    read by the workers of a cluster: after how many seconds one that says
                         nothing ends all, and a notice names one that is waited for. Default: 30.
`RX_WAIT_LIMIT_SECONDS`  read by the same: how long workers wait for one that is alive but busy
                         elsewhere before all end; 0 for no limit. Default: 600.
`RX_SECOND_PORT`         read by the chief of workers that train together: where JAX's service
                         listens, beside the port of its address. Default: any free one.
`RX_CLUSTER_SECRET`      read by the processes of a cluster, to trust each other; set by
                         `replicax run`.
`RX_CLUSTER_SECRET_FILE` read where it is unset: a file with the secret, of this user only.
`RX_PROCESSES_HERE`      set by `replicax run`, for the processes that it starts: how many share
                         this machine.
`RX_METRICS_FILE`        read when the first strategy is made, and unset, so that child processes do
                         not write there, too: the file that has the metrics of this process. `-` is
                         for `replicax run`, which sets it.
`RX_CPU_TUNING`          read when a program is compiled for CPUs: `0` for JAX as it comes, or
                         names of the parts of the tuning to use, to find a fault. Default: all.
`GLIBC_TUNABLES`, `MALLOC_…`  read with it: settings of the user for `malloc` are left alone.
`RX_COMPILATION_CACHE`   read when the first strategy is made: the folder in which compiled programs
                         are kept for the next start, or `off`. Default: `replicax` in the user's
                         cache folder, `XDG_CACHE_HOME`.

`RX_JOIN`                read by workers of `replicax run`: `0` for workers that train alone.
`RX_RESTART`             set by `replicax run`: how many times the program was started before.
`RX_SSH`                 read by `replicax run --hosts`: the program that reaches a host. Default:
                         `ssh`.

What describes a cluster is read in `cluster_resolver`: `TF_CONFIG`, the variables of schedulers,
`RX_TPU_FALLBACK`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from pathlib import Path

from replicax._core.errors import UsageError, WrongBackend

KERAS_BACKEND = "KERAS_BACKEND"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
NCCL_ALGO = "NCCL_ALGO"
JAX_PLATFORMS = "JAX_PLATFORMS"
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
GPU_FRACTION = "XLA_CLIENT_MEM_FRACTION"
OLD_GPU_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
GPU_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
OF_GPU_MEMORY = (PREALLOCATE, GPU_FRACTION, OLD_GPU_FRACTION, GPU_ALLOCATOR)
XLA_FLAGS = "XLA_FLAGS"
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"
TPU_LIBRARY_PATH = "TPU_LIBRARY_PATH"
LIBTPU_WITHOUT_TPU = ("TPU_SKIP_MDS_QUERY", "ALLOW_MULTIPLE_LIBTPU_LOAD")
RX_TLS = ("RX_TLS_CERT", "RX_TLS_KEY", "RX_TLS_CA")
RX_WATCHDOG_SECONDS = "RX_WATCHDOG_SECONDS"
RX_WAIT_LIMIT_SECONDS = "RX_WAIT_LIMIT_SECONDS"
RX_SECOND_PORT = "RX_SECOND_PORT"
RX_CLUSTER_SECRET = "RX_CLUSTER_SECRET"
RX_CLUSTER_SECRET_FILE = "RX_CLUSTER_SECRET_FILE"
RX_CPU_TUNING = "RX_CPU_TUNING"
RX_PROCESSES_HERE = "RX_PROCESSES_HERE"
RX_METRICS_FILE = "RX_METRICS_FILE"
CPU_TUNING_PARTS = (
    *("attention", "convolutions", "elementwise", "fusions", "loops", "memory"),
    *("optimizers", "pooling", "products", "tables", "threads"),
)
RX_COMPILATION_CACHE = "RX_COMPILATION_CACHE"
RAY_ADDRESS = "RAY_ADDRESS"
RAY_AUTH_MODE = "RAY_AUTH_MODE"
OF_JAX = (
    *(JAX_PLATFORMS, "JAX_NUM_CPU_DEVICES", "NPROC", XLA_FLAGS, RX_CPU_TUNING),
    *(CUDA_VISIBLE_DEVICES, *OF_GPU_MEMORY),
)
# For processes that exchange large arrays at every step: malloc keeps freed memory, for all threads
# together. Otherwise each array is mapped and unmapped, with a page fault per 4 KB.
GLIBC_TUNABLES = "GLIBC_TUNABLES"
KEEP_MEMORY = (
    "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4294967296:glibc.malloc.arena_max=1"
)


def prefer_jax_backend() -> None:
    """Choose JAX as Keras' backend if the choice is still open.

    Keras reads `KERAS_BACKEND` once, when it is first imported, so this must happen at
    `import replicax`. A user's own setting is left alone: `require_jax_backend` reports it.
    """
    if "keras" not in sys.modules:
        os.environ.setdefault(KERAS_BACKEND, "jax")


def require_jax_backend() -> None:
    """Refuse another backend before Keras is imported, which may fail without that backend."""
    chosen = os.environ.get(KERAS_BACKEND, "jax")
    if chosen != "jax" and "keras" not in sys.modules:
        raise WrongBackend(
            f"KERAS_BACKEND={chosen}, but Replicax runs Keras on JAX. Set KERAS_BACKEND=jax, or "
            "leave it unset."
        )


def prefer_nccl_ring() -> None:
    """Let NCCL, if it is used, communicate in rings. It must happen before NCCL starts."""
    os.environ.setdefault(NCCL_ALGO, "Ring")


@contextlib.contextmanager
def only_compiling_for_tpus() -> Generator[None, None, None]:
    """Let libtpu start without a TPU in a `with` block."""
    changes: dict[str, str | None] = dict.fromkeys(LIBTPU_WITHOUT_TPU, "1")
    if ".so" not in os.environ.get(TPU_LIBRARY_PATH, ""):  # see `without_idle_libtpu`
        changes[TPU_LIBRARY_PATH] = None
    before = {name: os.environ.get(name) for name in changes}
    set_variables(changes)
    try:
        yield
    finally:
        set_variables(before)


def without_idle_libtpu(environ: Mapping[str, str], chips: int) -> dict[str, str]:
    """Variables that keep JAX from loading libtpu on a machine without a TPU.

    libtpu is installed there to compile for TPUs. Every process would load it, which takes a tenth
    of a second, warns in five lines, and takes a lock. JAX ignores a path that is no library.
    Nothing is added if there are `chips` of a TPU, or the environment chooses a platform.
    """
    is_named = environ.get(TPU_LIBRARY_PATH, "") not in ("", _installed_libtpu())
    is_chosen = chips or JAX_PLATFORMS in environ or is_named
    return {} if is_chosen else {TPU_LIBRARY_PATH: __file__}


def _installed_libtpu() -> str:
    """The value that `import jax` gives to `TPU_LIBRARY_PATH` if it is not set."""
    found = importlib.util.find_spec("libtpu")
    return str(Path(found.origin).with_name("libtpu.so")) if found and found.origin else ""


def leave_idle_libtpu() -> None:
    """Keep JAX from loading libtpu, if this machine has no TPU; before JAX starts."""
    os.environ.update(without_idle_libtpu(os.environ, chips_on_bus()))


PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"
# The devices of Google on a PCI bus that are TPUs, from v2 to TPU7x.
_CHIPS = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})


def chips_on_bus(devices: Path = PCI_DEVICES) -> int:
    """How many TPU chips this machine has, counted as JAX counts them."""
    return sum(
        _read(device / "vendor") == _GOOGLE and _read(device / "device") in _CHIPS
        for device in devices.glob("*")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def set_variables(changes: Mapping[str, str | None]) -> None:
    """Set variables of this process, which JAX and CUDA read when they start; None unsets one."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def setting(name: str, environ: Mapping[str, str] | None = None) -> str:
    """The value of a variable, without spaces around it; empty if it is not set."""
    return (os.environ if environ is None else environ).get(name, "").strip()


def watchdog_seconds() -> float | None:
    """`RX_WATCHDOG_SECONDS`; None if it is not set."""
    fix = "Write after how long a silent worker is given up, such as 120; unset it is 30."
    return _seconds(RX_WATCHDOG_SECONDS, fix)


def wait_limit_seconds() -> float | None:
    """`RX_WAIT_LIMIT_SECONDS`, 0 for no limit; None if it is not set."""
    fix = (
        "Write how long workers may wait for one that is busy elsewhere, such as 3600, or 0 for no "
        "limit; unset it is 600."
    )
    return _seconds(RX_WAIT_LIMIT_SECONDS, fix, may_be_zero=True)


def _seconds(name: str, fix: str, *, may_be_zero: bool = False) -> float | None:
    text = setting(name)
    try:
        seconds = float(text) if text else None
    except ValueError:
        seconds = -1.0
    if seconds is None or 0.0 < seconds < float("inf") or (may_be_zero and seconds == 0.0):
        return seconds
    kind = "number" if may_be_zero else "positive number"
    raise UsageError(f"{name} must be a {kind} of seconds, got {text!r}. {fix}")


def second_port() -> int:
    """`RX_SECOND_PORT`; 0 if it is not set."""
    port = setting(RX_SECOND_PORT)
    if port and not (port.isdecimal() and 0 < int(port) < 1 << 16):
        raise UsageError(
            f"{RX_SECOND_PORT}={port!r} is no port from 1 to 65535. Write one that the firewall "
            "lets the other workers reach at the chief, and that is not the port of its address."
        )
    return int(port or 0)


def environment_for_child(
    changes: Mapping[str, str],
    *,
    without: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """This environment with `changes`, without the variables that begin with one of `without`."""
    own = os.environ if environ is None else environ
    kept = {name: value for name, value in own.items() if not name.startswith(tuple(without))}
    return {**kept, **changes}


def ray_asks_for_token() -> bool:
    """Whether Ray, in this process, shows a token to the cluster that it joins."""
    return setting(RAY_AUTH_MODE).lower() == "token"


# The program's choice of parts of the tuning for CPUs; empty if there is none.
chosen_parts: list[frozenset[str]] = []


def enabled_parts() -> frozenset[str]:
    """The parts of the tuning for this process: chosen by the program, else by the environment."""
    return chosen_parts[0] if chosen_parts else cpu_tuning_parts()


def cpu_tuning_parts(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The parts of the tuning for CPUs that `RX_CPU_TUNING` leaves on; all by default.

    Example:
        >>> sorted(cpu_tuning_parts({"RX_CPU_TUNING": "memory,pooling"}))
        ['memory', 'pooling']
    """
    value = setting(RX_CPU_TUNING, environ)
    if value in ("", "1"):
        return frozenset(CPU_TUNING_PARTS)
    names = frozenset() if value == "0" else frozenset(name.strip() for name in value.split(","))
    if not names <= set(CPU_TUNING_PARTS):
        parts = ", ".join(CPU_TUNING_PARTS)
        raise UsageError.of(RX_CPU_TUNING, f"0, 1, or some of {parts} with commas between", value)
    return names


def tuning_for_child(
    parts: Collection[str], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables that set these parts of the tuning in a child process."""
    own = os.environ if environ is None else environ
    users = _tunables(own) or malloc_is_set(own)
    kept = {GLIBC_TUNABLES: KEEP_MEMORY} if "memory" in parts and not users else {}
    return {**kept, RX_CPU_TUNING: ",".join(sorted(parts)) or "0"}


def malloc_is_set(environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user has settings for the C library's `malloc`, which are left alone then."""
    own = os.environ if environ is None else environ
    return "glibc.malloc." in _tunables(own) or any(name.startswith("MALLOC_") for name in own)


def _tunables(environ: Mapping[str, str]) -> str:
    """`GLIBC_TUNABLES` without the settings of this package."""
    return environ.get(GLIBC_TUNABLES, "").replace(KEEP_MEMORY, "").strip(":")


def set_among(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processes_here() -> int:
    """How many processes of the program share this machine, as `replicax run` set it; else 1."""
    count = setting(RX_PROCESSES_HERE)
    return int(count) if count.isdecimal() and int(count) else 1


def pop_metrics_file() -> str:
    """Return and unset `RX_METRICS_FILE`; empty if it is not set."""
    return os.environ.pop(RX_METRICS_FILE, "").strip()


def folder_for_state() -> Path:
    return Path(setting("XDG_STATE_HOME") or Path.home() / ".local" / "state")


def compilation_cache_folder(environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder for compiled programs, by `RX_COMPILATION_CACHE`; None to keep none."""
    value = setting(RX_COMPILATION_CACHE, environ)
    if value.lower() in ("off", "0", "false", "no"):
        return None
    return Path(value).expanduser() if value else usual_compilation_cache(environ)


def usual_compilation_cache(environ: Mapping[str, str] | None = None) -> Path:
    return Path(setting("XDG_CACHE_HOME", environ) or Path.home() / ".cache") / "replicax"


def visible_gpus(count: int, environ: Mapping[str, str] | None = None) -> list[str]:
    """Of `count` GPUs, the names of those that `CUDA_VISIBLE_DEVICES` leaves to this process.

    MIG devices and UUIDs have names that are no numbers.

    Example:
        >>> visible_gpus(4, {"CUDA_VISIBLE_DEVICES": "2,0"}), visible_gpus(2, {})
        (['2', '0'], ['0', '1'])
    """
    visible = (os.environ if environ is None else environ).get(CUDA_VISIBLE_DEVICES)
    if visible is None or not count:
        return list(map(str, range(count)))
    names: list[str] = []
    # CUDA stops at the first name that it does not know, or has seen.
    for name in map(str.strip, visible.split(",")):
        is_known = name.isdecimal() and int(name) < count or name[:1].isalpha()
        if not is_known or name in names:
            break
        names.append(name)
    return names


_PLATFORMS = {"cuda": {"gpu", "cuda"}, "GPU": {"gpu", "cuda", "rocm"}, "TPU": {"tpu"}}


def leaves(platforms: str | None, kind: str) -> bool:
    """Whether JAX may use devices of a kind: GPU, TPU, or GPUs of NVIDIA, with these platforms.

    Example:
        >>> leaves("cuda,cpu", "GPU"), leaves("cpu", "cuda"), leaves(None, "TPU")
        (True, False, True)
    """
    return not platforms or bool(_PLATFORMS[kind] & set(platforms.split(",")))


def gpu_share_at_start(environ: Mapping[str, str] | None = None) -> float:
    """The share of a GPU's memory that JAX takes when it starts; see its page on GPU memory."""
    own = os.environ if environ is None else environ
    grows = own.get(PREALLOCATE, "").lower() in ("0", "false")
    if grows or own.get(GPU_ALLOCATOR, "default").lower() not in ("default", "bfc"):
        return 0.0
    try:
        return float(own.get(GPU_FRACTION) or own.get(OLD_GPU_FRACTION) or 0.75)
    except ValueError:
        return 0.75


def demand_deterministic_gpus() -> None:
    """Let XLA use deterministic kernels on GPUs; before it starts."""
    flags = os.environ.get(XLA_FLAGS, "")
    if DETERMINISTIC not in flags:
        os.environ[XLA_FLAGS] = f"{flags} {DETERMINISTIC}".strip()
