"""The machine before JAX starts: its GPUs, its devices, and the cache of compiled programs.

`startup` decides which devices JAX may see, once, when a strategy or a function first needs it.
"""
