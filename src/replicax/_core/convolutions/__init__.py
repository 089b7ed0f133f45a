"""Faster convolutions on CPUs, by a kernel in C; JAX's own where there is no compiler.

A convolution of JAX, and its two gradients, which to JAX are convolutions too, go to the kernel
(kernel.c, library.py) if it has their form (forms.py), on each device for its own part of the
arrays (sharding.py).
"""
