"""Embedding tables on servers: rows by number, and rows by id that come and go.

Rows are gathered and updated a few at a time, in NumPy if the optimizer permits it, in memory or in
files.
"""
