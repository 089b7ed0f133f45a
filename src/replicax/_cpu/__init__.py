"""Faster programs on CPUs: replacements for operations that XLA computes slowly.

`programs.py` applies them to Replicax' programs only. Each part of the tuning is a file with the
operations it replaces, and `tuning.py` holds the switches of the parts. Kernels in C (`src/`) are
built with the package, by `scripts/kernels.py`; `kernels.py` loads the best library for this CPU.
This room imports neither the engine nor Keras.
"""
