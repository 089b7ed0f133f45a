"""Embedding tables on servers: rows by number, and rows by id that come and go.

Rows are gathered and updated a few at a time, in NumPy where an optimizer can, in memory or in
files.
"""
