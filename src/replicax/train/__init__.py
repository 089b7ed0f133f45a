"""Checkpoints: the names of `tf.train` for what a training run keeps on disk.

`_checkpoint.py` saves objects, whose parts `_parts.py` names; `_workers.py` lets several workers
save and restore one checkpoint together. `_files.py` is the format, in a folder or behind a URL,
and `_theirs.py` reads TensorFlow's. It imports no strategy: variables know their own placement.
"""

from replicax.train._checkpoint import Checkpoint as Checkpoint
from replicax.train._manager import CheckpointManager as CheckpointManager
from replicax.train._manager import all_checkpoints as all_checkpoints
from replicax.train._manager import checkpoints_iterator as checkpoints_iterator
from replicax.train._manager import latest_checkpoint as latest_checkpoint
from replicax.train._plain import Value as Value
from replicax.train._reading import CheckpointReader as CheckpointReader
from replicax.train._reading import list_variables as list_variables
from replicax.train._reading import load_checkpoint as load_checkpoint
from replicax.train._reading import load_variable as load_variable
from replicax.train._status import CheckpointOptions as CheckpointOptions
from replicax.train._status import LoadStatus as LoadStatus
