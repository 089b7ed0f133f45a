"""`tf.compat.v1.logging`: the logger of Replicax."""

from __future__ import annotations

from typing import Any

from replicax.tf._compat import DEBUG as DEBUG
from replicax.tf._compat import ERROR as ERROR
from replicax.tf._compat import FATAL as FATAL
from replicax.tf._compat import INFO as INFO
from replicax.tf._compat import WARN as WARN
from replicax.tf._compat import WARNING as WARNING
from replicax.tf._compat import debug as debug
from replicax.tf._compat import error as error
from replicax.tf._compat import fatal as fatal
from replicax.tf._compat import get_verbosity as get_verbosity
from replicax.tf._compat import info as info
from replicax.tf._compat import log as log
from replicax.tf._compat import set_verbosity as set_verbosity
from replicax.tf._compat import warn as warn
from replicax.tf._compat import warning as warning
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
