"""A parameter server: cells with their optimizers, and what keeps them from being lost.

A server applies each update once. Snapshots, journals and replicas bring its state back when its
process dies.
"""
