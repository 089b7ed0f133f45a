"""Tables on CPUs, whose rows a kernel of our own looks up, adds up and adds to them.

XLA compiles several small kernels for each table of a model, which takes longer than many of its
steps. `_cpu/src/tables.c` is compiled once. `rule.py` says which operations of JAX it gets, and
`operation.py` makes an operation of JAX of what an optimizer does to a table.
"""
