"""The environment of the child process of each tool, which it must have before it imports JAX.

JAX fixes the number of virtual CPU devices and the size of its thread pool when it starts. Setting
both in the environment of a child keeps `launch` free of JAX. The thread pool has room for all
devices: XLA:CPU can dead-lock in an all-reduce if a replica waits for a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replicax._core.env import chips_on_bus, cores, without_idle_libtpu
from replicax.launch._plan import device_variables

USUAL_REPLICAS = 2  # on a CPU
_SPARE_DEVICES = 8


def environment_of(
    command: str, environ: Mapping[str, str], request: Mapping[str, Any]
) -> dict[str, str]:
    match command:
        case "top":
            return dict(environ)
        case "doctor":  # which starts others
            return of_profile(environ, None)
        case "profile":
            return of_profile(environ, request["replicas"])
        case "plan":
            return of_plan(environ, cpu=request["cpu"], gpu=request["gpu"])
        case "migrate":
            return _of_migrate(environ, request["replicas"])
        case _:
            return of_compare(environ, request["replicas"])


def of_compare(environ: Mapping[str, str], replicas: int | None) -> dict[str, str]:
    """Keras on JAX, virtual CPUs; without a TPU, libtpu is kept out.

    `replicas` None leaves the number of devices to the machine.
    """
    return {
        **environ,
        "KERAS_BACKEND": "jax",
        **_virtual(replicas or USUAL_REPLICAS),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **without_idle_libtpu(environ, chips_on_bus()),
    }


def of_profile(environ: Mapping[str, str], replicas: int | None) -> dict[str, str]:
    """Keras on JAX, and enough virtual devices.

    `replicas` None lets the script train on as many as it does by itself.
    """
    asked: dict[str, str] = {}
    if replicas is not None:
        # JAX starts before the script, which may ask for more devices itself.
        devices = {"JAX_NUM_CPU_DEVICES": str(max(_SPARE_DEVICES, replicas))}
        asked = _virtual(replicas) | devices
    return {
        **environ,
        "KERAS_BACKEND": environ.get("KERAS_BACKEND", "jax"),
        **asked,
        "TF_CPP_MIN_LOG_LEVEL": "2",
        **without_idle_libtpu(environ, chips_on_bus()),
    }


def of_plan(environ: Mapping[str, str], *, cpu: int | None, gpu: int | None) -> dict[str, str]:
    """JAX on the CPU, with the virtual devices that are asked for; `environ` may ask for more."""
    asked = environ.get("JAX_NUM_CPU_DEVICES", "")
    return {
        **environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cuda,cpu" if gpu else "cpu",
        **_virtual(max(cpu or 1, int(asked) if asked.isdigit() else 1)),
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


def _of_migrate(environ: Mapping[str, str], replicas: int) -> dict[str, str]:
    """It asks modules for names, and needs no accelerator; programs that it runs inherit this."""
    return {
        **{name: value for name, value in environ.items() if name != "TF_CONFIG"},
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        **_virtual(replicas),
        "MPLBACKEND": "Agg",
        "RX_JOIN": "0",
    }


def _virtual(devices: int) -> dict[str, str]:
    return device_variables(devices, cores())
