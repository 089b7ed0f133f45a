"""The words that every room shares: contexts, values, reductions, topologies, options, errors.

It hands out small frozen records and pure functions over arrays: who replicas are (`topology.py`,
`context.py`), what they hold (`values.py`), and how they combine it (`reduce.py`). `machine/`
prepares a process before JAX starts. It imports JAX and NumPy, neither Keras nor an engine.
"""
