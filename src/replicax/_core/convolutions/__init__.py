"""Faster convolutions on CPUs, by a kernel in C, or by other operations of JAX without it.

A convolution of JAX, and its two gradients, which to JAX are convolutions too, go to the kernel
(`_cpu/src/convolutions.c`) if they have its form (forms.py), on each device for its own part of
the arrays (sharding.py). plain.py has what is used without the kernel.
"""
