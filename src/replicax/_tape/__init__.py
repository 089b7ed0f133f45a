"""`rx.GradientTape`: gradients of the computation in a `with` block, also by Keras variables.

`recording_trace.py` records each operation of the block in `tape_entries.py`, which computes the
gradients from them. `custom_gradient.py` has functions with derivatives of their own. This
imports `_program`, `_keras` and `_core`. Only the public package and `tf` import it.
"""
