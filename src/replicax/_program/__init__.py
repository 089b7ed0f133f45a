"""What becomes of a step's program before it runs: it is rewritten by passes, and compiled.

A pass goes through a jaxpr and gives one that computes the same: sums that travel together, rows
of tables instead of whole gradients, an update done at home. `compiling.py` compiles the result for
its devices. Workers compare their programs and what these compute. This imports the words of
`_core`, `_control` and, for CPUs, `_cpu`; it knows no Keras.
"""
