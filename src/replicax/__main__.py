"""`python -m replicax` is `replicax`."""

from __future__ import annotations

import sys

from replicax.launch._cli import main

if __name__ == "__main__":
    sys.exit(main())
