"""Faster convolutions on CPUs, where oneDNN and a C compiler are installed; else JAX's own.

A convolution of JAX, and its two gradients, which to JAX are convolutions too, go to oneDNN if it
can compute them (forms.py). A kernel in C calls it (kernel.c, library.py), on each device for its
own part of the arrays (sharding.py).
"""
