"""Helpers for tests of distributed code: virtual devices, and the matrix of strategies."""

from replicax.testing._devices import virtual_devices as virtual_devices
from replicax.testing._matrix import MATRIX as MATRIX
from replicax.testing._matrix import strategy_params as strategy_params
