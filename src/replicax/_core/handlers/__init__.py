"""Operations of JAX that a kernel in C may compute.

`operation.py` makes one from a formula, and `one_device.py` says where a kernel gets whole arrays.
`building.py` compiles the kernel of convolutions, which is not among those of `_cpu` yet.
"""
