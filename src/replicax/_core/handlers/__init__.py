"""What the XLA FFI handlers of this package share, which are written in C.

`handler.h` lets threads of XLA's pool work together. `building.py` compiles a handler for this
machine when it is first needed, and tells XLA of it. `operation.py` makes an operation of JAX that
a handler may compute.
"""
