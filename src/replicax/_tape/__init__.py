"""`rx.GradientTape`: derivatives of what a `with` block computes, also by Keras variables.

`recording_trace.py` notes each operation of the block; `wengert.py` goes back along the list.
`custom_gradient.py` has functions that bring a derivative of their own.
"""
