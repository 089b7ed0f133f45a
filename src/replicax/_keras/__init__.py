"""The seams in Keras: what it has to do differently while a strategy is used.

`_compat.py` alone uses names that Keras does not export, and puts the seams in; README.md gives
the reason for each. The other files hold what the seams call: where variables live, what an
optimizer does on several replicas, and `Module` and `Variable` with TensorFlow's methods. This
imports `_program`, `_core` and, for CPUs, `_cpu`; the engines and all that trains import it.
"""
