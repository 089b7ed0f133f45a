"""`rx.function`: a Python function, traced once for each signature and compiled.

`function.py` decides which program a call runs; `function_programs.py` makes them.
`exporting.py` and `importing.py` save functions and models as programs and load them again. This
imports `_program`, `_keras` and `_core`, and no strategy: a `run` inside a function is traced like
any other code. `_ps`, which schedules functions, `layers` and `tf` import it.
"""
