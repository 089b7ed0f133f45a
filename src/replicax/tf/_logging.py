"""TensorFlow's logging by Python's: the logger of Replicax."""

from __future__ import annotations

import logging

DEBUG, INFO, WARN, ERROR, FATAL = (
    logging.DEBUG,
    logging.INFO,
    logging.WARNING,
    logging.ERROR,
    logging.FATAL,
)
WARNING = WARN
_LOG = logging.getLogger("replicax")

debug, info, warning, error = _LOG.debug, _LOG.info, _LOG.warning, _LOG.error
warn, fatal, log = warning, _LOG.fatal, _LOG.log


def set_verbosity(v: int | str) -> None:
    """Show messages of this kind and of graver ones."""
    _LOG.setLevel(v)


def get_verbosity() -> int:
    """Which messages are shown."""
    return _LOG.getEffectiveLevel()
