"""From a stateful function to a compiled step.

`capture.py` makes a function pure. Passes transform its jaxpr: bucketed all-reduces
(`bucketing.py`), `IndexedSlices` instead of dense gradients (`table_gradients.py`).
`compiling.py` compiles the result for its devices, and `program.py` caches and executes it.
`agreement.py` compares programs and state between workers. This room imports `_core`, `_cpu`, and
of `_keras` only `_compat.py`.
"""
