"""What the benchmarks share: processes that take turns, what they train, and tables of it."""
