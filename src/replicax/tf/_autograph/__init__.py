"""AutoGraph: Python's `if`, `while` and `for` on arrays of compiled code.

malt, the AutoGraph of TensorFlow as PennyLane keeps it, rewrites a function's source into calls of
our operators. They are Python's own control flow where Python can decide, and JAX's where it
cannot. `calling.py` says what is converted, `converting.py` rewrites it, `operators.py` has the
operators, `staged.py` the branches and loops of compiled code. It imports `tf/_flow`.
"""
