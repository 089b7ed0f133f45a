"""`replicax migrate`: what of TensorFlow a program uses, and its imports rewritten.

`_programs` reads scripts and notebooks, `_names` finds what they use, `_verdicts` asks
`replicax.tf` whether it is there, `_patterns` finds what is no name, `_imports` rewrites, and
`_report` prints. `__main__` is started by `replicax.launch`.
"""
