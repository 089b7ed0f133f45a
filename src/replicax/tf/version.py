"""`tf.version`: the TensorFlow whose names these are, and the Replicax that has them."""

from __future__ import annotations

import replicax as rx

# A program may compare it: the numbers are TensorFlow's, ours stand behind the plus.
VERSION = f"2.21.0+replicax.{rx.__version__}"
GIT_VERSION = COMPILER_VERSION = rx.__version__
