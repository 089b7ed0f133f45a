"""Products that sum over many rows, on CPUs, by a kernel of our own.

The gradient of a weight is one: XLA copies one of the arrays transposed before it multiplies.
`_cpu/src/products.c` computes it from the arrays as they are, `rule.py` says which it gets.
"""
