"""What makes programs on CPUs fast: operations that XLA computes slowly, computed by other means.

`programs.py` changes our programs so, and nobody else's. A file for each part of the tuning says
what becomes of which operations, `tuning.py` which parts are on. Kernels in C (`src/`) are built
with the package, by `scripts/kernels.py`; `kernels.py` loads the best library for this CPU. Of
Replicax this imports a few words: no engine, no Keras.
"""
