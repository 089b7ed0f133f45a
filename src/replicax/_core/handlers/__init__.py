"""Operations of JAX that a kernel in C may compute.

`operation.py` makes one from a formula, and `one_device.py` says where a kernel gets whole arrays.
"""
