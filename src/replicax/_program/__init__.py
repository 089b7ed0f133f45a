"""From a stateful function to a compiled step.

`capture.py` makes a function pure, and passes go through its jaxpr and give one that computes the
same: all-reduces that travel together, rows of tables instead of whole gradients, an update done at
home. `compiling.py` compiles the result for its devices. `program.py` says which calls share a
program, and is the one executor. Workers compare their programs and what these
compute. This imports the words of `_core` and, for CPUs, `_cpu`. Of Keras it knows the
names in `_keras/_compat.py` alone.
"""
