"""Adam on CPUs by a kernel of our own: each array is read and written once, in place.

`kernel.c` computes a step, `library.py` compiles that, and `operation.py` makes an operation of JAX
of it, which is the formula of Keras everywhere else.
"""
