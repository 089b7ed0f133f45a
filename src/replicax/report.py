"""Reports on the strategies of this machine: `compare` trains under each, `devices` lists them.

The names are loaded on first use: tables and progress bars need neither JAX nor Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicax._tools.compare.comparing import compare as compare
    from replicax._tools.compare.devices import DeviceReport as DeviceReport
    from replicax._tools.compare.devices import devices as devices
    from replicax._tools.compare.result import Comparison as Comparison
    from replicax._tools.compare.result import Epoch as Epoch
    from replicax._tools.compare.result import Interval as Interval
    from replicax._tools.compare.result import Measurement as Measurement
    from replicax._tools.compare.settings import Settings as Settings
    from replicax._tools.compare.text import save as save

_HOME_OF = {
    "compare": "comparing",
    "Comparison": "result",
    "Epoch": "result",
    "Interval": "result",
    "Measurement": "result",
    "DeviceReport": "devices",
    "devices": "devices",
    "save": "text",
    "Settings": "settings",
}


if not TYPE_CHECKING:  # to a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"{__name__} has no {name!r}; see docs/tools.md")
        return getattr(importlib.import_module(f"replicax._tools.compare.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
