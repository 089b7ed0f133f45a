"""Keras variables whose values live elsewhere, and the optimizers that update these there.

`server_variable.py` and `table_variable.py` are what a program sees; `shard_optimizer.py` is a
Keras optimizer for one value. Where a value is, and how it is reached, a home says.
"""
