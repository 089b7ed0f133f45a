"""The words that every room shares: contexts, values, reductions, topologies, options, errors.

It hands out small frozen records and pure functions over arrays: who replicas are (`topology.py`,
`context.py`), what they hold (`values.py`), how they combine it (`reduce.py`), and how workers
agree (`channel.py`). `machine/` prepares a process before JAX starts. It imports JAX, NumPy
and filelock, and nothing of ours; all other rooms import it.
"""
