"""Kernels in C for what XLA computes slowly on CPUs, built when the package is built.

`src/` holds the C sources, which `scripts/kernels.py` compiles into one library per level of CPUs;
`kernels.py` loads the best one for this CPU and hands out the names by which XLA calls them.
`kernels.py` imports JAX and nothing of Replicax.
"""
