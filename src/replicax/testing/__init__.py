"""Helpers for tests of distributed code: virtual devices, and the matrix of strategies."""

from replicax.testing._helpers import MATRIX as MATRIX
from replicax.testing._helpers import strategy_params as strategy_params
from replicax.testing._helpers import virtual_devices as virtual_devices
