"""Data sets → per-replica batches.

`source.py` reads batches of any library, `sharing.py` cuts each worker's share of them, and
`dataset.py` and `iterator.py` hand the pieces to an engine, which places them on devices. This
imports `_core` and `data`; the engine is passed in. `strategies`, `train` and, for the data of its
workers, `_ps` import it.
"""
