"""`tf.io.gfile`: files of this machine, and by fsspec, where it is installed, of other places."""

from __future__ import annotations

from typing import Any

from replicax.tf._files import FileStatistics as FileStatistics
from replicax.tf._files import GFile as GFile
from replicax.tf._files import Open as Open
from replicax.tf._files import copy as copy
from replicax.tf._files import exists as exists
from replicax.tf._files import get_registered_schemes as get_registered_schemes
from replicax.tf._files import glob as glob
from replicax.tf._files import isdir as isdir
from replicax.tf._files import join as join
from replicax.tf._files import listdir as listdir
from replicax.tf._files import makedirs as makedirs
from replicax.tf._files import mkdir as mkdir
from replicax.tf._files import remove as remove
from replicax.tf._files import rename as rename
from replicax.tf._files import rmtree as rmtree
from replicax.tf._files import stat as stat
from replicax.tf._files import walk as walk
from replicax.tf._missing import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name(__name__, name)
