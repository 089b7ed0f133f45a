"""What the strategies of this machine do: `compare` trains under each, `devices` looks at them.

The names are loaded on first use: tables and progress bars need neither JAX nor Keras.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replicax._tools.compare._compare import compare as compare
    from replicax._tools.compare._comparison import Comparison as Comparison
    from replicax._tools.compare._comparison import Epoch as Epoch
    from replicax._tools.compare._comparison import Interval as Interval
    from replicax._tools.compare._comparison import Measurement as Measurement
    from replicax._tools.compare._devices import DeviceReport as DeviceReport
    from replicax._tools.compare._devices import devices as devices
    from replicax._tools.compare._save import save as save
    from replicax._tools.compare._settings import Settings as Settings

_HOME_OF = {
    "compare": "_compare",
    "Comparison": "_comparison",
    "Epoch": "_comparison",
    "Interval": "_comparison",
    "Measurement": "_comparison",
    "DeviceReport": "_devices",
    "devices": "_devices",
    "save": "_save",
    "Settings": "_settings",
}


if not TYPE_CHECKING:  # to a type checker, every name would exist

    def __getattr__(name: str) -> Any:
        if name not in _HOME_OF:
            raise AttributeError(f"{__name__} has no {name!r}; see docs/tools.md")
        return getattr(importlib.import_module(f"replicax._tools.compare.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
