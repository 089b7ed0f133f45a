"""What the strategies of this machine do: `compare` trains under each, `devices` looks at them."""

from __future__ import annotations

from replicax.report._compare import compare as compare
from replicax.report._comparison import Comparison as Comparison
from replicax.report._comparison import Epoch as Epoch
from replicax.report._comparison import Interval as Interval
from replicax.report._comparison import Measurement as Measurement
from replicax.report._devices import DeviceReport as DeviceReport
from replicax.report._devices import devices as devices
from replicax.report._save import save as save
from replicax.report._settings import Settings as Settings
