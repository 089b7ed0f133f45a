"""`tf.version`: the TensorFlow whose names these are, and the Replicax that has them."""

from __future__ import annotations

from replicax import __version__ as _own

# A program may compare it: the numbers are TensorFlow's, ours stand behind the plus.
VERSION = f"2.21.0+replicax.{_own}"
GIT_VERSION = COMPILER_VERSION = _own
