"""Profiles and facts made by hand."""

import pytest

from replicax._core.machine.nvidia import Driver, Gpu
from replicax._tools.doctor.facts import PACKAGES, Facts
from replicax._tools.profile.result import PARTS, Profile


@pytest.fixture
def made():
    """A profile with these parts of a step, in seconds."""

    def made(replicas=2, rows=64, **known):
        own = {"devices": (), "compiled": 0, "compiled_in": 0}
        own |= {name: known.pop(name) for name in tuple(known) if name in own}
        parts = dict.fromkeys(PARTS, 0.0) | known
        return Profile(
            name="train.py",
            kind="train step",
            replicas=replicas,
            rows=rows,
            steps=10,
            seconds=sum(parts.values()),
            parts=parts,
            is_traced=True,
            warm_up_compiling=1.0,
            program=None,
            host_peak_bytes=2**30,
            trace=None,
            **own,
        )

    return made


GPUS = [Gpu(number, f"GPU-{number}", "H100", 2**36, 2**36, (9, 0)) for number in range(2)]


@pytest.fixture
def found():
    """What a machine without faults has, but for what is said."""

    def found(**changes):
        usual = {
            "python": "3.12.1",
            "versions": dict.fromkeys(PACKAGES, "1.5")
            | {"jax": "0.10.2", "jaxlib": "0.10.2", "keras": "3.15.1", "ray": "2.60.0"}
            | dict.fromkeys(["jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-nccl-cu12"])
            | {"jax-cuda13-plugin": "0.10.2", "jax-cuda13-pjrt": "0.10.2"},
            "wanted": {
                "python": ">=3.11",
                "jax": "<0.11,>=0.10",
                "jaxlib": "<=0.10.2,>=0.10.2",
                "keras": "<3.16,>=3.12",
                "ray": ">=2.60",
            },
            "backend": None,
            "platform": "gpu",
            "devices": 2,
            "jax_error": "",
            "jax_warning": "",
            "settings": {},
            "gpus": 2,
            "gpus_visible": 2,
            "driver": Driver("580.95.05", (13, 0), tuple(GPUS), ()),
            "driver_error": "",
            "has_nccl_library": False,
            "chips": 0,
            "cores": 8,
            "threads": None,
            "loopback_error": "",
            "shared_bytes": 2**33,
            "cache": "/cache",
            "cache_error": "",
            "has_compiler": True,
            "kernels": "x86-64-v3",
            "kernels_off": "",
        }
        versions = usual["versions"] | changes.pop("versions", {})
        return Facts(**usual | {"versions": versions} | changes)

    return found
