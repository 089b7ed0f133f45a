"""`tf.profiler.experimental`: profiles of a program, or of a part of it."""

from __future__ import annotations

from typing import Any

from replicax.tf._missing import missing_name
from replicax.tf._profiler import Profile as Profile
from replicax.tf._profiler import ProfilerOptions as ProfilerOptions
from replicax.tf._profiler import Trace as Trace
from replicax.tf._profiler import start as start
from replicax.tf._profiler import stop as stop
from replicax.tf.profiler import server as server


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
