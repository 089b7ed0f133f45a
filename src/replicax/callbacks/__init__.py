"""Keras callbacks for distributed training."""

from replicax.callbacks._backup import BackupAndRestore as BackupAndRestore
from replicax.callbacks._checks import AssertFinite as AssertFinite
from replicax.callbacks._checks import Staleness as Staleness
from replicax.callbacks._checks import VerifySteps as VerifySteps
from replicax.callbacks._monitor import ReplicaMonitor as ReplicaMonitor
from replicax.callbacks._profiler import Profiler as Profiler
from replicax.callbacks._tensorboard import TensorBoard as TensorBoard
