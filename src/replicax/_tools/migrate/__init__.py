"""`replicax migrate`: what of TensorFlow a program uses, and its imports rewritten.

`programs` reads scripts and notebooks, `names` finds what they use and asks `replicax.tf` whether
it is there, `imports` rewrites, and `report` prints. `__main__` is started by `replicax.launch`.
"""
