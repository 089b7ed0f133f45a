"""Keras variables whose values live elsewhere, and the optimizers that update them there.

A home knows where a value is, and how to reach it.
"""
