"""Keras variables whose values live elsewhere, and the optimizers that update them there.

`server_variable.py` and `server_variable.py` are what a program sees; `shard_optimizer.py` is a
Keras optimizer for one value. A home knows where a value is, and how to reach it.
"""
