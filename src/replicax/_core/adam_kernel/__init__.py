"""Adam on CPUs by a kernel of our own: each array is read and written once, in place.

`_cpu/src/adam.c` computes a step, and `operation.py` makes an operation of JAX of it, which is
Keras' formula everywhere else.
"""
