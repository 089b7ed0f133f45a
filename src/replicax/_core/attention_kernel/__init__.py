"""Attention on CPUs by a kernel of our own, with what it needs to be an operation of JAX.

`formula.py` says what attention is, by operations of JAX. `_cpu/src/attention.c` computes the same
and its gradient, and `operation.py` makes operations of JAX of the two.
"""
