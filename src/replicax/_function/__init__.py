"""`rx.function`: a Python function, traced once for each signature and compiled.

`function.py` decides which program a call runs; `function_programs.py` makes them.
`exporting.py` and `importing.py` save functions and models as programs and load them again.
"""
